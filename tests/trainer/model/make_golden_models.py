"""Tiny random checkpoints of every family, with what transformers computes from them.

Writes data/<family>/ (a Hugging Face folder) and data/<family>/golden.safetensors:
  ids [2, T]           token ids
  logits [2, T, V]     float32
  routing [layers, 2 * T, k]   experts that transformers chose (mixture of experts only)
  grad.<name>          gradient of the mean over all predicted tokens of -log p(next token)
Run with transformers 5.24.0 and torch 2.11.0; the results stand in the repository.
"""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
              rms_norm_eps=1e-6, initializer_range=0.1, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)


def models():
    yield "llama", LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=True))
    yield "llama3", LlamaForCausalLM(LlamaConfig(**COMMON, rope_parameters=LLAMA3,
                                                 tie_word_embeddings=False))
    yield "qwen2", Qwen2ForCausalLM(Qwen2Config(**COMMON, tie_word_embeddings=False))
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=16, tie_word_embeddings=True))
    yield "qwen3_moe", Qwen3MoeForCausalLM(Qwen3MoeConfig(
        **COMMON, head_dim=16, num_experts=8, num_experts_per_tok=4, moe_intermediate_size=24,
        norm_topk_prob=True, tie_word_embeddings=False))


def randomise(model):
    """Norms and biases away from 1 and 0, so that a mistake with them shows."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.2)


def main():
    for family, model in models():
        torch.manual_seed(sum(map(ord, family)))
        for p in model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.1)
        randomise(model)
        model = model.float().eval()
        folder = os.path.join(HERE, "data", family)
        model.save_pretrained(folder)
        ids = torch.randint(3, 96, (2, 23))
        routing = []
        if family == "qwen3_moe":
            for layer in model.model.layers:
                def note(module, args, out):
                    routing.append(out[-1].detach().reshape(-1, 4))
                layer.mlp.gate.register_forward_hook(note)
        logits = model(ids).logits
        golden = {"ids": ids.to(torch.int32), "logits": logits.detach().contiguous()}
        if routing:
            golden["routing"] = torch.stack(routing).to(torch.int32)
        logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])
        (-logp.mean()).backward()
        # Names as the checkpoint has them: gradients go the way the weights go.
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.grad)
        model.save_pretrained(os.path.join(folder, "grad"))
        from safetensors.torch import load_file
        grads = load_file(os.path.join(folder, "grad", "model.safetensors"))
        for name, value in grads.items():
            golden["grad." + name] = value.clone()
        for f in os.listdir(os.path.join(folder, "grad")):
            os.remove(os.path.join(folder, "grad", f))
        os.rmdir(os.path.join(folder, "grad"))
        save_file(golden, os.path.join(folder, "golden.safetensors"))
        print(family, sum(p.numel() for p in model.parameters()), file=sys.stderr)


main()
