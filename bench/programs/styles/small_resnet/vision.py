"""Small ResNet on synthetic 32x32 images with random flips, crops, colour jitter and mixup-free label smoothing."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

cfg = dict(classes=10, images=640, batch=64, epochs=2, width=16, lr=0.05, smoothing=0.1, pad=4)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


class Synthetic(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.y = torch.randint(0, cfg["classes"], (n,), generator=g)
        base = torch.rand(cfg["classes"], 3, 32, 32, generator=g)
        self.x = (0.5 * base[self.y] + 0.5 * torch.rand(n, 3, 32, 32, generator=g)).mul(255).byte()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i].float() / 255, self.y[i]


def augment(images):
    """random crop, random flip and normalisation, on the device"""
    out = []
    for img in images:
        padded = F.pad(img, (cfg["pad"],) * 4)
        dy = torch.randint(0, 2 * cfg["pad"] + 1, (1,)).item()
        dx = torch.randint(0, 2 * cfg["pad"] + 1, (1,)).item()
        img = padded[:, dy : dy + 32, dx : dx + 32]
        if torch.rand(1).item() < 0.5:
            img = img.flip(-1)
        out.append(img)
    batch = torch.stack(out)
    mean = torch.tensor(MEAN).to(batch.device).view(1, 3, 1, 1)
    std = torch.tensor(STD).to(batch.device).view(1, 3, 1, 1)
    return (batch - mean) / std


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out = out + (x if self.down is None else self.down(x))
        return F.relu(out)


def resnet():
    w = cfg["width"]
    return nn.Sequential(
        nn.Conv2d(3, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(),
        BasicBlock(w, w), BasicBlock(w, 2 * w, 2), BasicBlock(2 * w, 4 * w, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * w, cfg["classes"]),
    )


class LabelSmoothingLoss(nn.Module):
    def __init__(self, classes, eps):
        super().__init__()
        self.classes, self.eps = classes, eps

    def forward(self, logits, target):
        logp = F.log_softmax(logits, dim=1)
        dist = torch.full_like(logp, self.eps / self.classes)
        dist.scatter_(1, target.unsqueeze(1), 1 - self.eps + self.eps / self.classes)
        return (-dist * logp).sum(dim=1).mean()


def evaluate(model, loader):
    model.eval()
    correct = total = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
        std = torch.tensor(STD, device=device).view(1, 3, 1, 1)
        pred = model((x - mean) / std).argmax(1)
        correct += (pred == y).sum().item()
        total += y.numel()
    return correct / total


def run():
    torch.manual_seed(0)
    train = DataLoader(Synthetic(cfg["images"]), batch_size=cfg["batch"], shuffle=True, num_workers=0)
    test = DataLoader(Synthetic(256), batch_size=cfg["batch"])
    model = resnet().to(device)
    criterion = LabelSmoothingLoss(cfg["classes"], cfg["smoothing"])
    opt = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=0.9, weight_decay=5e-4, foreach=False)
    for epoch in range(cfg["epochs"]):
        model.train()
        train_loss = 0.0
        for i, (x, y) in enumerate(train):
            x, y = augment(x.to(device)), y.to(device)
            loss = criterion(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            train_loss += loss.item()
            if device.type == "cuda":
                torch.cuda.synchronize()
        print(f"epoch {epoch}: train loss {train_loss / (i + 1):.4f}, test acc {evaluate(model, test):.3f}")


if __name__ == "__main__":
    run()
