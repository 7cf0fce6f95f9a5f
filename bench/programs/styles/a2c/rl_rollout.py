"""A2C with GAE on a bank of toy point-mass environments, in the CleanRL single-file style."""
import os
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


@dataclass
class Args:
    seed: int = 1
    num_envs: int = 16
    num_steps: int = 64
    num_updates: int = 8
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    update_epochs: int = 2


class PointMass:
    """Move a point to the origin in 2-D; five actions."""

    MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32) * 0.1

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.reset()

    def reset(self):
        self.pos = self.rng.uniform(-1, 1, 2).astype(np.float32)
        self.vel = np.zeros(2, dtype=np.float32)
        return np.concatenate([self.pos, self.vel])

    def step(self, action):
        self.vel = 0.9 * self.vel + self.MOVES[action]
        self.pos = self.pos + 0.1 * self.vel
        reward = -float(np.abs(self.pos).sum())
        done = bool(np.abs(self.pos).max() > 2)
        obs = self.reset() if done else np.concatenate([self.pos, self.vel])
        return obs, reward, done


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, obs_dim, n_act):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(obs_dim, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
                                    layer_init(nn.Linear(64, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(obs_dim, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
                                   layer_init(nn.Linear(64, n_act), std=0.01))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def main():
    args = Args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.autograd.set_detect_anomaly(True)
    device = torch.device("cuda" if torch.cuda.is_available() and not os.environ.get("CPU") else "cpu")
    envs = [PointMass(args.seed + i) for i in range(args.num_envs)]
    agent = Agent(4, 5).to(device)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    obs_now = [e.reset() for e in envs]
    for update in range(1, args.num_updates + 1):
        obs, actions, rewards, dones, values = [], [], [], [], []
        for step in range(args.num_steps):
            obs_t = torch.tensor(obs_now).to(device)
            action, logprob, _, value = agent.get_action_and_value(obs_t)
            values.append(value.flatten().detach())
            obs.append(obs_t)
            actions.append(action)
            reward_row, done_row = [], []
            for i, env in enumerate(envs):
                o, r, d = env.step(action[i].item())
                obs_now[i] = o
                reward_row.append(r)
                done_row.append(float(d))
            rewards.append(torch.tensor(reward_row).to(device))
            dones.append(torch.tensor(done_row).to(device))

        # generalised advantage estimation, environment by environment
        with torch.no_grad():
            next_value = agent.get_value(torch.tensor(np.array(obs_now)).to(device)).flatten()
        advantages = torch.zeros(args.num_steps, args.num_envs, device=device)
        for e in range(args.num_envs):
            lastgaelam = 0.0
            for t in reversed(range(args.num_steps)):
                nextvalues = next_value[e] if t == args.num_steps - 1 else values[t + 1][e]
                nonterminal = 1.0 - dones[t][e]
                delta = rewards[t][e] + args.gamma * nextvalues * nonterminal - values[t][e]
                lastgaelam = delta + args.gamma * args.gae_lambda * nonterminal * lastgaelam
                advantages[t, e] = lastgaelam
        returns = advantages + torch.stack(values)

        b_obs = torch.cat(obs)
        b_actions = torch.cat(actions)
        b_adv = advantages.reshape(-1)
        b_ret = returns.reshape(-1)
        b_adv = (b_adv - b_adv.mean()) / (b_adv.std() + 1e-8)
        for epoch in range(args.update_epochs):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs, b_actions)
            pg_loss = -(b_adv * newlogprob).mean()
            v_loss = ((newvalue.flatten() - b_ret) ** 2).mean()
            loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
        mean_reward = torch.stack(rewards).mean().item()
        print(f"update {update} reward {mean_reward:.4f} v_loss {v_loss.item():.4f}")


if __name__ == "__main__":
    main()
