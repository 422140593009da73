#!/usr/bin/env python3
"""TRL's GRPOTrainer (transformers' generate) on one GPU, at the shape of step_gpu.yaml.

  trl_gpu.py MODEL QUESTIONS.jsonl [--steps 4] [--micro 64] [--bf16-weights]

MODEL: a Hugging Face folder. QUESTIONS: lines with "question" and "answer". Every response has --new
tokens, every sample is trained, one optimizer step a batch. One JSON line on stdout: seconds a step (the
first is not measured), the part that generates, and the peak of memory that torch took from the device.
"""
import argparse, json, os, statistics, sys, tempfile, time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("questions")
parser.add_argument("--prompts", type=int, default=128)
parser.add_argument("--group", type=int, default=8)
parser.add_argument("--new", type=int, default=200)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--micro", type=int, default=64, help="samples a forward and backward pass")
parser.add_argument("--bf16-weights", action="store_true", help="bfloat16 weights; else float32 under autocast")
parser.add_argument("--cpu", action="store_true", help="to try the script")
args = parser.parse_args()
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
out, sys.stdout = sys.stdout, sys.stderr

import torch, transformers, trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

torch.backends.cuda.matmul.allow_tf32 = True


def reward(completions, answer, **_):
    return [float(a.split("####")[-1].strip() in c[0]["content"]) for c, a in zip(completions, answer)]


class Laps(TrainerCallback):
    def __init__(self):
        self.ends = []

    def on_step_end(self, *_, **__):
        if not args.cpu:
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(
    args.model, dtype=torch.bfloat16 if args.bf16_weights else torch.float32)
rows = [json.loads(line) for line in open(args.questions)]
data = Dataset.from_list([
    {"prompt": [{"role": "user", "content": r["question"]}], "answer": r["answer"]} for r in rows])
batch = args.prompts * args.group
with tempfile.TemporaryDirectory() as folder:
    config = GRPOConfig(
        output_dir=folder, use_cpu=args.cpu, bf16=not args.cpu, gradient_checkpointing=False,
        per_device_train_batch_size=args.micro, gradient_accumulation_steps=batch // args.micro,
        num_generations=args.group, max_completion_length=args.new, temperature=1.0, beta=0.0,
        learning_rate=1e-6, lr_scheduler_type="constant", max_steps=args.steps, logging_steps=10**6,
        report_to="none", save_strategy="no", disable_tqdm=True, seed=1,
        generation_kwargs={"min_new_tokens": args.new})
    laps, generate = Laps(), []
    trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=data,
                          processing_class=tokenizer, callbacks=[laps])
    inner = trainer._generate_single_turn

    def timed(*a, **k):
        start = time.perf_counter()
        result = inner(*a, **k)
        generate.append((time.perf_counter() - start, sum(map(len, result[0]))))
        return result

    trainer._generate_single_turn = timed
    trainer.train()
steps = [b - a for a, b in zip(laps.ends, laps.ends[1:])]
print(json.dumps({
    "bench": "trl_step", "step_s_median": round(statistics.median(steps), 3),
    "step_s": [round(s, 3) for s in steps],
    "generate_s_median": round(statistics.median(g[0] for g in generate[1:]), 3),
    "generated_tokens": [g[1] for g in generate], "samples": batch, "micro": args.micro,
    "bf16_weights": args.bf16_weights,
    "peak_allocated_bytes": 0 if args.cpu else torch.cuda.max_memory_allocated(),
    "peak_reserved_bytes": 0 if args.cpu else torch.cuda.max_memory_reserved(),
    "torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__}),
    file=out, flush=True)
