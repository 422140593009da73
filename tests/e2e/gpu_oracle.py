#!/usr/bin/env python3
"""The rollout engine on a GPU against transformers on the same GPU.

  gpu_oracle.py ORRERY EXAMPLES WORK [--smol MODEL QUESTIONS.jsonl]

ORRERY: the built binary. EXAMPLES: this project's examples folder. WORK: an empty folder. Needs torch with
CUDA and transformers. Checks, for random Qwen3 and Qwen3-MoE checkpoints that transformers wrote:

  - float32: each sampled token's log-prob, of a mixed batch of 256 (prompts in chunks beside decoding) and
    of sequences alone, within 1e-5 of transformers', relative to the size of the logits;
  - bfloat16: the error against float32 on the same weights is at most twice that of transformers' own
    bfloat16 (root mean square), and its largest at most three times theirs;
  - experts: with the routing that the engine recorded replayed in transformers; how often its own choice
    differs, and by how much probability, is printed.

With --smol: SmolLM2-135M, both number formats, and its greedy text for 64 questions, which must be that of
transformers' up to ties (two logits closer than the number format can tell apart). Exit code 1 where one fails.
"""
import argparse, base64, copy, json, os, shutil, subprocess, sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("orrery")
parser.add_argument("examples")
parser.add_argument("work")
parser.add_argument("--device", default="cuda")
parser.add_argument("--smol", nargs=2, metavar=("MODEL", "QUESTIONS"))
args = parser.parse_args()
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
failures = []


def check(name, ok, text):
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {text}", flush=True)
    if not ok:
        failures.append(name)


def make_model(kind, folder):
    """A random checkpoint with the story tokenizer; heads of 64 and 128, several query heads a key head."""
    source = os.path.join(args.examples, "story_math_h200", "model")
    vocab = json.load(open(os.path.join(source, "config.json")))["vocab_size"]
    torch.manual_seed(5)
    common = dict(vocab_size=vocab, hidden_size=256, num_hidden_layers=4, num_attention_heads=8,
                  num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.06,
                  tie_word_embeddings=False)
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=64, intermediate_size=512, **common))
    else:
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
            head_dim=128, intermediate_size=512, moe_intermediate_size=128, num_experts=32,
            num_experts_per_tok=4, norm_topk_prob=True, **common))
    model.to(torch.bfloat16).save_pretrained(folder)  # the same weights for both formats
    ours = json.load(open(os.path.join(source, "config.json")))
    config = json.load(open(os.path.join(folder, "config.json")))
    for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
        config[key] = ours.get(key)
    json.dump(config, open(os.path.join(folder, "config.json"), "w"))
    for name in os.listdir(source):
        if name != "config.json":
            shutil.copy(os.path.join(source, name), folder)


def run(name, yaml, settings):
    command = [args.orrery, "run", yaml]
    settings = {"run.name": name, "run.directory": os.path.join(args.work, "runs"), "run.steps": 1,
                "run.device": args.device, "evals": "[]", "optimizer.learning_rate": 0, "output.report": "false",
                **settings}
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    file = os.path.join(args.work, "runs", name, "samples", "step-1.jsonl.zst")
    text = subprocess.run(["zstd", "-dcq", file], capture_output=True, check=True).stdout if shutil.which(
        "zstd") else unzstd(file)
    return [json.loads(line) for line in text.splitlines()]


def unzstd(file):
    try:
        from compression import zstd
        return zstd.decompress(open(file, "rb").read())
    except ImportError:
        import pyarrow
        return pyarrow.input_stream(file, compression="zstd").read()


def sequences(rows):
    """(token ids, [(position, log-prob)], routed experts or None) of each sample."""
    for row in rows:
        for sample in row["samples"]:
            ids, wanted = [], []
            for segment in sample["segments"]:
                first = len(ids)
                ids += segment["token_ids"]
                for i, logprob in enumerate(segment.get("logprobs") or []):
                    wanted.append((first + i, logprob))
            routed = sample.get("routed_experts")
            experts = None
            if routed:
                raw = base64.b64decode(routed["ids"])
                assert routed["id_bytes"] == 1, routed["id_bytes"]
                experts = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long().reshape(
                    -1, routed["layers"], routed["top_k"])
            yield ids, wanted, experts


class Replay:
    """Makes the routers of a model choose given experts; counts where their own choice differs."""

    def __init__(self, model):
        self.tokens = self.flips = 0
        self.margins = []
        self.experts = None
        for index, layer in enumerate(model.model.layers):
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.forward = self.forward_of(layer.mlp.gate, index)

    def forward_of(self, gate, index):
        def forward(x):
            logits = torch.nn.functional.linear(x.reshape(-1, gate.hidden_dim), gate.weight)
            probs = torch.softmax(logits.float(), -1)
            own = torch.topk(probs, gate.top_k, -1).indices
            given = own.clone()
            n = self.experts.shape[0]
            given[:n] = self.experts[:, index].to(own.device)
            differs = (own.sort(-1).values != given.sort(-1).values).any(-1)
            self.tokens += n
            self.flips += int(differs.sum())
            if differs.any():
                lost = probs.gather(-1, own).sum(-1) - probs.gather(-1, given).sum(-1)
                self.margins.append(float(lost[differs].max()))
            scores = probs.gather(-1, given)
            if gate.norm_topk_prob:
                scores = scores / scores.sum(-1, keepdim=True)
            return logits, scores.to(logits.dtype), given
        return forward


@torch.no_grad()
def logprobs(model, samples):
    """Log-probs of the wanted tokens, and the largest logit seen, sequence by sequence."""
    replay = Replay(model) if hasattr(model.model.layers[0].mlp, "gate") else None
    values, size = [], 0.0
    for ids, wanted, experts in samples:
        if replay:
            replay.experts = experts[:len(ids)]
        logits = model(torch.tensor([ids], device=args.device)).logits[0].float()
        size = max(size, float(logits.abs().max()))
        table = torch.log_softmax(logits, -1)
        positions = torch.tensor([p for p, _ in wanted], device=args.device)
        tokens = torch.tensor(ids, device=args.device)[positions]
        values.append(table[positions - 1].gather(-1, tokens[:, None])[:, 0].cpu())
    return torch.cat(values), size, replay


def compare(name, folder, rows, dtype, weights=torch.bfloat16):
    samples = list(sequences(rows))
    ours = torch.tensor([lp for _, wanted, _ in samples for _, lp in wanted])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=weights).to(args.device).eval()
    exact = copy.deepcopy(model).float()
    expected, size, replay = logprobs(exact, samples)
    if replay:
        print(f"     {name}: {replay.flips} of {replay.tokens} choices of experts differ from transformers'"
              f" in float32, by at most {max(replay.margins, default=0):.2e} of probability")
    error = (ours - expected).abs()
    rms = lambda x: float(x.square().mean().sqrt())
    if dtype == "float32":
        bound = 1e-5 * max(size, 1)
        check(name, float(error.max()) <= bound,
              f"{len(ours)} log-probs, largest difference {float(error.max()):.2e}, bound {bound:.2e}")
        return
    theirs = (logprobs(model, samples)[0] - expected).abs()
    check(name, rms(error) <= 2 * rms(theirs) and float(error.max()) <= 3 * float(theirs.max()),
          f"{len(ours)} log-probs, error against float32 {rms(error):.2e} (largest {float(error.max()):.2e}),"
          f" transformers' bfloat16 {rms(theirs):.2e} ({float(theirs.max()):.2e})")


def small_models():
    yaml = os.path.join(args.examples, "story_math_h200", "grpo.yaml")
    for kind in ("qwen3", "qwen3_moe"):
        folder = os.path.join(args.work, kind)
        os.makedirs(folder)
        make_model(kind, folder)
        for dtype in ("float32", "bfloat16"):
            settings = {"model.path": folder, "model.dtype": dtype, "sampling.max_new_tokens": 48,
                        "rollout.prompts_per_step": 32, "rollout.samples_per_prompt": 8,
                        "rollout.max_running": 256, "rollout.prefill_chunk_tokens": 128}
            if kind == "qwen3_moe":
                settings |= {"trainer.routing_replay": "rollout", "run.numerics": "fast",
                             "trainer.optimizer_steps_per_rollout": 2}
            name = f"{kind}_{dtype}"
            compare(f"{name}, batch of 256", folder, run(name, yaml, settings), dtype)
            settings |= {"rollout.prompts_per_step": 2, "rollout.samples_per_prompt": 2,
                         "rollout.max_running": 1}
            compare(f"{name}, alone", folder, run(name + "_alone", yaml, settings), dtype)


@torch.no_grad()
def greedy(folder, rows):
    """Texts of the coldest sampling against greedy decoding, one prompt at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(args.device).eval()
    same = ties = 0
    for ids, wanted, _ in sequences(rows):
        first = wanted[0][0]
        logits = model(torch.tensor([ids], device=args.device)).logits[0]
        best = logits.argmax(-1).tolist()
        at = next((p for p in range(first, len(ids)) if best[p - 1] != ids[p]), None)
        if at is None:
            same += 1
            continue
        gap = float(logits[at - 1].max() - logits[at - 1][ids[at]])
        if gap > 1e-3:
            check("greedy text", False, f"token {at - first}: {ids[at]} in place of {best[at - 1]}, whose logit"
                  f" is larger by {gap:.4f}")
            return
        ties += 1
    check("greedy text", same + ties == 64, f"{same} texts equal, {ties} differ at a tie")


def smol():
    folder, questions = args.smol
    yaml = os.path.join(args.examples, "gsm8k_smollm2", "grpo.yaml")
    base = {"model.path": folder, "data.source": questions, "sampling.max_new_tokens": 100}
    for dtype in ("float32", "bfloat16"):
        rows = run(f"smol_{dtype}", yaml, {**base, "model.dtype": dtype, "rollout.prompts_per_step": 32,
                                           "rollout.samples_per_prompt": 8, "rollout.max_running": 256})
        # In float32 transformers has the folder's own weights too.
        compare(f"smollm2 {dtype}", folder, rows, dtype,
                torch.float32 if dtype == "float32" else torch.bfloat16)
    # So cold that anything but the largest logit has no chance unless it is within 0.01 of it.
    rows = run("smol_cold", yaml, {**base, "model.dtype": "float32", "sampling.temperature": 0.0001,
                                   "rollout.prompts_per_step": 64, "rollout.samples_per_prompt": 1,
                                   "algorithm.name": "reinforce_plus_plus"})
    greedy(folder, rows)


os.makedirs(args.work, exist_ok=True)
small_models()
if args.smol:
    smol()
print("failed: " + ", ".join(failures) if failures else "all agree")
sys.exit(1 if failures else 0)
