"""Times training steps of small decoders in eager PyTorch on one GPU and writes them as a runs table.

Run `python benchmarks/training_runs/torch_step.py --out runs.csv` on a machine with a GPU and torch. Float32 weights
under bfloat16 autocast, fused AdamW, PyTorch's own flash attention, layer norms and checkpoints. Peak memory is the
most that was allocated.
"""
# torch is no dependency of the package.
# pyright: reportMissingImports=false

import gc
from typing import Any

import torch
from settings import Run, measure_all, step_times, succeeded
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, (heads, kv_heads), d = run, run.heads, run.d_model
        self.query = nn.Linear(d, heads * run.head_dim, bias=False)
        self.key = nn.Linear(d, kv_heads * run.head_dim, bias=False)
        self.value = nn.Linear(d, kv_heads * run.head_dim, bias=False)
        self.out = nn.Linear(heads * run.head_dim, d, bias=False)
        self.up = nn.Linear(d, run.width, bias=False)
        self.gate = nn.Linear(d, run.width, bias=False) if run.gated else None
        self.down = nn.Linear(run.width, d, bias=False)
        self.norm_attention, self.norm_mlp = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        """Residual stream to residual stream [sequence, token, d_model]."""
        size, length, _ = x.shape
        hidden = self.norm_attention(x)
        heads = [
            projection(hidden).view(size, length, -1, self.run.head_dim).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        ]
        is_grouped = self.run.heads[0] != self.run.heads[1]
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=is_grouped)
        x = x + self.out(attended.transpose(1, 2).reshape(size, length, -1))
        hidden = self.norm_mlp(x)
        up = self.up(hidden)
        if self.gate is None:
            return x + self.down(functional.gelu(up, approximate="tanh"))
        return x + self.down(functional.silu(self.gate(hidden)) * up)


class Decoder(nn.Module):
    """Embedding, layers, logits and loss."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.embedding = nn.Embedding(run.vocab, run.d_model)
        self.layers = nn.ModuleList(Layer(run) for _ in range(run.n_layers))
        self.norm = nn.LayerNorm(run.d_model)
        self.head = nn.Linear(run.d_model, run.vocab, bias=False)

    def forward(self, tokens: Any) -> Any:
        """Mean cross-entropy of the next token; logits in 32 bits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.run.recompute == "full" else layer(x)
        logits = self.head(self.norm(x)).float().view(-1, self.run.vocab)
        return functional.cross_entropy(logits, tokens.roll(-1, 1).reshape(-1))


def measure(run: Run) -> dict[str, Any]:
    """Median time of a step and peak memory, or `oom`."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        with torch.device("cuda"):
            model = Decoder(run)
            tokens = torch.randint(0, run.vocab, (run.n_microbatches, run.micro_batch, run.seq_len))
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            for microbatch in tokens:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(microbatch)
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            torch.cuda.synchronize()

        times = step_times(step)
    except torch.cuda.OutOfMemoryError:
        return {"status": "oom"}
    return succeeded(times, torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    measure_all(measure, "pytorch", f"torch {torch.__version__}", __doc__)
