import torch


def linear_betas(timesteps, start=1e-4, end=0.02):
    return torch.linspace(start, end, timesteps)


def extract(values, t, shape):
    out = values.gather(0, t)
    return out.reshape(t.shape[0], *((1,) * (len(shape) - 1)))


class Diffusion:
    """The forward process, and the way back."""

    def __init__(self, timesteps, device):
        self.timesteps = timesteps
        self.device = device

    def q_sample(self, x0, t, noise):
        betas = linear_betas(self.timesteps).to(self.device)
        alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
        a = extract(torch.sqrt(alphas_cumprod), t, x0.shape)
        b = extract(torch.sqrt(1.0 - alphas_cumprod), t, x0.shape)
        return a * x0 + b * noise

    def p_sample(self, model, x, step):
        betas = linear_betas(self.timesteps).to(self.device)
        alphas = 1.0 - betas
        alphas_cumprod = torch.cumprod(alphas, dim=0)
        t = torch.full((x.shape[0],), step, dtype=torch.long).to(self.device)
        eps = model(x, t)
        mean = (x - extract(betas / torch.sqrt(1.0 - alphas_cumprod), t, x.shape) * eps) / extract(torch.sqrt(alphas), t, x.shape)
        if step == 0:
            return mean
        return mean + extract(torch.sqrt(betas), t, x.shape) * torch.randn_like(x)

    def sample(self, model, shape):
        model.eval()
        x = torch.randn(shape).to(self.device)
        frames = []
        for step in reversed(range(self.timesteps)):
            x = self.p_sample(model, x, step)
            frames.append(x.cpu())
        model.train()
        return frames[-1]
