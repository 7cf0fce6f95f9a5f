"""Trains a small denoising diffusion model on synthetic images, keeps an exponential average, and samples a few."""
import argparse
import copy

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from schedule import Diffusion
from unet import UNet


def update_ema(ema_model, model, decay):
    with torch.no_grad():
        for ema_param, param in zip(ema_model.parameters(), model.parameters()):
            ema_param.data.mul_(decay).add_(param.data, alpha=1 - decay)


def main(args):
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = torch.rand(args.batch_size * 8, 3, args.size, args.size) * 2 - 1
    dataset = TensorDataset(images)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = UNet(args.channels).to(device)
    ema = copy.deepcopy(model)
    diffusion = Diffusion(args.timesteps, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)

    step = 0
    while step < args.steps:
        for (x,) in loader:
            x = x.to(device)
            t = torch.randint(0, args.timesteps, (x.shape[0],)).to(device)
            noise = torch.randn_like(x)
            pred = model(diffusion.q_sample(x, t, noise), t)
            loss = F.mse_loss(pred, noise)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update_ema(ema, model, 0.995)

            print(f"step {step} loss {loss.item():.5f}")
            step += 1
            if step >= args.steps:
                break

    samples = diffusion.sample(ema, (4, 3, args.size, args.size))
    print(f"sample mean {samples.mean().item():.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--timesteps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
