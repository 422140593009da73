"""Runs of the built binary against transformers, tokenizers and TensorBoard.

    oracle_checks.py BINARY SOURCE_DIR

Recorded log-probs are recomputed by transformers from the checkpoint that they were sampled with:
with a checkpoint every step, the samples of step k + 1 were drawn with the weights of step k.
"""

import glob
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

BINARY, SOURCE = sys.argv[1:3] if len(sys.argv) > 2 else ("", "")
MODEL = os.path.join(SOURCE, "examples/story_math/start")
STEPS = 4
# Of a log-prob in float32 between two implementations: the project's own bound for this model.
TOLERANCE = 2e-5

EXPERIMENT = """
run: {{name: {name}, directory: {folder}, seed: 11, threads: 2, steps: {steps}}}
model: {{path: {model}, dtype: {dtype}}}
data: {{source: story_math, chat: false, prompt_template: "{{prompt}}\\n"}}
story_math: {{templates: 6, rows: 4000}}
sampling: {{max_new_tokens: 26, temperature: {temperature}}}
rollout: {{prompts_per_step: 6, samples_per_prompt: 4}}
rewards: [{{name: gsm8k_strict}}]
algorithm: {{aggregation: token_mean}}
optimizer: {{learning_rate: 1e-3}}
checkpoint: {{every: 1, keep: 0}}
"""


def orrery(*arguments):
    done = subprocess.run([BINARY, *arguments], capture_output=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"orrery {arguments}: {done.returncode}\n{done.stderr.decode()}")
    return done.stdout.decode()


def run(folder, name, dtype="float32", temperature=1.0):
    path = os.path.join(folder, name + ".yaml")
    with open(path, "w") as file:
        file.write(EXPERIMENT.format(name=name, folder=folder, steps=STEPS, model=MODEL,
                                     dtype=dtype, temperature=temperature))
    orrery("run", path)
    return os.path.join(folder, name)


def samples(run_folder, step):
    import pyarrow

    path = os.path.join(run_folder, "samples", f"step-{step}.jsonl.zst")
    with pyarrow.input_stream(path, compression="zstd") as file:
        for line in file.read().decode().splitlines():
            for sample in json.loads(line)["samples"]:
                yield sample["segments"]


def load(folder, dtype):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager").eval()


def largest_difference(model, run_folder, step, temperature):
    """Over every sampled token of the step; and the number of tokens."""
    import torch

    largest, tokens = 0.0, 0
    for segments in samples(run_folder, step):
        prompt, response = segments
        ids = torch.tensor([prompt["token_ids"] + response["token_ids"]])
        with torch.no_grad():
            logits = model(ids).logits[0].float() / temperature
        at = len(prompt["token_ids"])
        expected = torch.log_softmax(logits[at - 1:-1], -1).gather(1, ids[0, at:, None])[:, 0]
        recorded = torch.tensor(response["logprobs"])
        versions = [pair for pair in response["versions"]]
        assert versions == [[step - 1, len(response["token_ids"])]], versions
        largest = max(largest, (expected - recorded).abs().max().item())
        tokens += len(response["token_ids"])
    return largest, tokens


class Oracle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="orrery-oracle-")
        cls.folder = cls.temporary.name
        cls.float32 = run(cls.folder, "float32")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def checkpoint(self, run_folder, step):
        return os.path.join(run_folder, "checkpoints", f"step-{step}") if step else MODEL

    def check_logprobs(self, run_folder, temperature):
        import torch

        for step in range(1, STEPS + 1):
            model = load(self.checkpoint(run_folder, step - 1), torch.float32)
            difference, tokens = largest_difference(model, run_folder, step, temperature)
            print(f"step {step}: {tokens} tokens, largest difference {difference:.3g}", flush=True)
            self.assertGreater(tokens, 100)
            self.assertLessEqual(difference, TOLERANCE)

    def test_recorded_logprobs_are_those_of_transformers(self):
        self.check_logprobs(self.float32, 1.0)

    def test_recorded_logprobs_at_another_temperature(self):
        self.check_logprobs(run(self.folder, "warm", temperature=0.7), 0.7)

    def test_the_comparison_sees_the_wrong_weights(self):
        """One optimizer step earlier is another model: what the tests above rest on."""
        import torch

        model = load(self.checkpoint(self.float32, STEPS - 2), torch.float32)
        difference, _ = largest_difference(model, self.float32, STEPS, 1.0)
        self.assertGreater(difference, 10 * TOLERANCE)

    def test_a_bfloat16_checkpoint_loads(self):
        import torch

        folder = run(self.folder, "bfloat16", dtype="bfloat16")
        path = self.checkpoint(folder, STEPS)
        model = load(path, torch.bfloat16)
        self.assertEqual({p.dtype for p in model.parameters()}, {torch.bfloat16})
        with open(path + "/config.json") as config:
            self.assertEqual(json.load(config).get("dtype"), "bfloat16")
        difference, _ = largest_difference(load(self.checkpoint(folder, STEPS - 1), torch.bfloat16),
                                           folder, STEPS, 1.0)
        # Logits of magnitude up to 16 rounded to 8 significant bits differ by up to 2^-4 each, on
        # both sides of the log-softmax.
        self.assertLess(difference, 4 * 2**-4)

    def test_token_ids_are_those_of_transformers(self):
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(
            self.checkpoint(self.float32, STEPS))
        for text in ("Amy has 26 books, finds 4 more.\n", "  two  spaces\t\ttabs\r\n\r\nend",
                     "na\u00efve caf\u00e9 e\u0301 \u4f60\u597d \U0001f600\U0001f1e9\U0001f1ea",
                     "<|im_start|>user\nhi<|im_end|>", "1234567890 3.14 a'll I'VE", "#### 7"):
            lines = orrery("tokenize", MODEL, text).splitlines()
            ids = [int(line.split()[0]) for line in lines if line[:6].strip().isdigit()]
            self.assertEqual(ids, tokenizer(text, add_special_tokens=False)["input_ids"], text)

    def test_tensorboard_reads_the_run(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(os.path.join(self.float32, "tb"))
        events.Reload()
        lines = [json.loads(line) for line in open(os.path.join(self.float32, "metrics.jsonl"))]
        for name in ("rollout/raw_reward", "train/loss", "perf/step_s"):
            scalars = [(event.step, event.value) for event in events.Scalars(name)]
            self.assertEqual([step for step, _ in scalars], list(range(1, STEPS + 1)), name)
            for (_, value), line in zip(scalars, lines):
                self.assertTrue(math.isclose(value, line[name], rel_tol=2**-23), name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
