"""Synthetic pictures of leaves, with the usual augmentation."""

import numpy as np
import torch
from torch.utils.data import Dataset

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
PAD = 8


def make_pictures(count: int, size: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures as uint8 (count, size, size, 3): each class is a stripe pattern and a tint, under noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    place = np.arange(size, dtype=np.float32)
    pictures = rng.integers(0, 96, (count, size, size, 3), dtype=np.uint8)
    for label in range(classes):
        angle = np.pi * label / classes
        wave = np.sin((np.cos(angle) * place[:, None] + np.sin(angle) * place[None, :]) * 0.5) * 40 + 60
        tint = 0.6 + 0.4 * np.cos(label + np.arange(3, dtype=np.float32) * 2)
        pictures[labels == label] += (wave[:, :, None] * tint).astype(np.uint8)
    return pictures, labels


class Leaves(Dataset):
    """Item n of a training run is picture n, modulo their count, with an augmentation drawn from n."""

    def __init__(self, pictures: np.ndarray, labels: np.ndarray, length: int, seed: int):
        self.pictures = pictures
        self.labels = labels
        self.length = length
        self.seed = seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, n: int) -> tuple[torch.Tensor, int]:
        index = n % len(self.pictures)
        rng = np.random.default_rng((self.seed, n))
        picture = self.pictures[index].astype(np.float32) / 255.0
        picture = self._crop(picture, rng)
        if rng.random() < 0.5:
            picture = picture[:, ::-1]
        picture = self._jitter(picture, rng)
        picture = np.ascontiguousarray(((picture - MEAN) / STD).transpose(2, 0, 1), dtype=np.float32)
        return torch.from_numpy(picture), int(self.labels[index])

    @staticmethod
    def _crop(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        padded = np.pad(picture, ((PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
        top, left = rng.integers(0, 2 * PAD + 1, 2)
        return padded[top : top + len(picture), left : left + len(picture)]

    @staticmethod
    def _jitter(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        brightness, contrast, saturation = rng.uniform(0.8, 1.2, 3).astype(np.float32)
        picture = picture * brightness
        picture = (picture - picture.mean()) * contrast + picture.mean()
        grey = picture.mean(axis=2, keepdims=True)
        return np.clip((picture - grey) * saturation + grey, 0.0, 1.0)
