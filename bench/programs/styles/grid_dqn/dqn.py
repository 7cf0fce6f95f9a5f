"""DQN on a batch of tiny grid worlds."""
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn

CFG = {
    "size": 6,
    "steps": 260,
    "warmup": 64,
    "batch": 32,
    "gamma": 0.97,
    "lr": 1e-3,
    "tau": 0.01,
    "eps": 0.2,
}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Grid:
    MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]

    def __init__(self, size, rng):
        self.size, self.rng = size, rng
        self.reset()

    def reset(self):
        self.pos = [self.rng.randrange(self.size), self.rng.randrange(self.size)]
        self.goal = [self.rng.randrange(self.size), self.rng.randrange(self.size)]
        return self.observe()

    def observe(self):
        return np.array(self.pos + self.goal, dtype=np.float32) / self.size

    def step(self, action):
        dx, dy = self.MOVES[action]
        self.pos[0] = min(max(self.pos[0] + dx, 0), self.size - 1)
        self.pos[1] = min(max(self.pos[1] + dy, 0), self.size - 1)
        done = self.pos == self.goal
        return self.observe(), (1.0 if done else -0.02), done


class ReplayBuffer:
    def __init__(self, capacity=5000):
        self.memory = deque(maxlen=capacity)

    def push(self, *transition):
        self.memory.append(transition)

    def sample(self, k, rng):
        batch = rng.sample(list(self.memory), k)
        states = torch.stack([torch.tensor(b[0]) for b in batch]).to(device)
        actions = torch.tensor([b[1] for b in batch]).to(device)
        rewards = torch.tensor([b[2] for b in batch]).to(device)
        nexts = torch.stack([torch.tensor(b[3]) for b in batch]).to(device)
        dones = torch.tensor([float(b[4]) for b in batch]).to(device)
        return states, actions, rewards, nexts, dones


def build():
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)).to(device)


def act(net, state, rng, eps):
    if rng.random() < eps:
        return rng.randrange(4)
    q = net(torch.from_numpy(state).unsqueeze(0).to(device))
    return int(q.detach().cpu().numpy().argmax())


def td_loss(online, target, batch, gamma):
    states, actions, rewards, nexts, dones = batch
    q = online(states)
    chosen = (q * nn.functional.one_hot(actions, 4).float()).sum(1)
    next_q = target(nexts).max(1)[0]
    expected = rewards + gamma * next_q * (1 - dones)
    return nn.functional.smooth_l1_loss(chosen, expected.detach())


def soft_update(target, online, tau):
    for tp, op in zip(target.parameters(), online.parameters()):
        tp.data.copy_(tau * op.data + (1.0 - tau) * tp.data)


def train(cfg):
    rng = random.Random(5)
    torch.manual_seed(5)
    env = Grid(cfg["size"], rng)
    online, target = build(), build()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=cfg["lr"])
    buffer = ReplayBuffer()
    state = env.reset()
    losses, wins = [], 0
    for step in range(cfg["steps"]):
        action = act(online, state, rng, cfg["eps"])
        nxt, reward, done = env.step(action)
        buffer.push(state, action, reward, nxt, done)
        wins += done
        state = env.reset() if done else nxt
        if step < cfg["warmup"]:
            continue
        loss = td_loss(online, target, buffer.sample(cfg["batch"], rng), cfg["gamma"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        soft_update(target, online, cfg["tau"])
        losses.append(loss.item())
        if step % 50 == 0:
            print("step", step, "loss", np.mean(losses[-50:]), "wins", wins)


if __name__ == "__main__":
    train(CFG)
