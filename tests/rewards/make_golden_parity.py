#!/usr/bin/env python3
"""Makes data/parity_more.tsv: verdicts of the real graders of miles, slime, verl on made-up responses.

    make_golden_parity.py MATH500.json OUT.tsv MILES SLIME VERL      (needs: pip install sympy pylatexenc)

MILES and SLIME are their rollout/rm_hub folders, VERL is its utils/reward_score folder. Measured on miles
31f1ca961, slime 624b824a8 and verl 1dda039b9 with sympy 1.14 and pylatexenc 2.11. A line: label, response
(backslash, tab, newline escaped as JSON does), then the five verdicts, "EXC" where the grader raised.
"""

import contextlib
import importlib.util
import io
import json
import logging
import random
import re
import sys

INTEGER = re.compile(r"-?\d+$")

CHANGES = [
    lambda a: a + ".0",
    lambda a: "$" + a,
    lambda a: "\\$" + a,
    lambda a: a + " dollars",
    lambda a: a + "\\text{ dollars}",
    lambda a: "\\text{" + a + "}",
    lambda a: a + "\\%",
    lambda a: "x=" + a,
    lambda a: "x = " + a,
    lambda a: a + " miles",
    lambda a: a + " cm^2",
    lambda a: a + " million",
    lambda a: a + " ways",
    lambda a: a + "^\\circ",
    lambda a: " " + a + " ",
    lambda a: "{" + a + "}",
    lambda a: a + ".",
    lambda a: "0" + a,
    lambda a: a.replace("frac", "dfrac"),
    lambda a: a.replace(" ", ""),
    lambda a: a.replace(",", ", "),
    lambda a: a.replace("{", "").replace("}", ""),
    lambda a: a.replace("1", "2"),
    lambda a: a + "+0",
    lambda a: "(" + a + ")",
    lambda a: "\\left(" + a + "\\right)",
    lambda a: a + "\\ \\text{cm}",
    lambda a: a + "\\,000",
    lambda a: "\\mathbf{" + a + "}",
    lambda a: "\\boxed{" + a + "}",
    lambda a: a + ",5",
    lambda a: "-" + a,
    lambda a: f"{int(a):,}" if INTEGER.match(a) else a,
    lambda a: a + "e1",
    lambda a: "\\frac{" + a + "}{1}",
    lambda a: a + " or " + a,
    lambda a: a.upper(),
    lambda a: a + "\n",
    lambda a: a + "\\\\",
    lambda a: "\\frac" + a,
    lambda a: a + "\\sqrt",
    lambda a: a + "%",
    lambda a: a + "\\!",
]

FRAMES = [
    "so \\boxed{%s}",
    "\\boxed{%s}.",
    "\\boxed{1} \\boxed{%s}",
    "Answer: %s",
    "Answer: $%s$",
    "answer:%s\n",
    "#### %s",
    "the answer is %s",
    "\\boxed {%s}",
    "\\fbox{%s}",
    "\\boxed{%s",
    "Answer: \\boxed{%s}",
    "x" * 290 + "#### %s",
    "\\boxed{%s} " + "\u00e9" * 280,
]


def load(path):
    spec = importlib.util.spec_from_file_location(re.sub(r"\W", "_", path), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(grade):
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        try:
            return str(float(grade()))
        except Exception:  # noqa: BLE001
            return "EXC"


def main():
    logging.disable(logging.CRITICAL)
    miles, slime, verl = sys.argv[3:6]
    miles_math, slime_math = load(miles + "/math_utils.py"), load(slime + "/math_utils.py")
    dapo, gsm8k = load(miles + "/math_dapo_utils.py"), load(verl + "/gsm8k.py")
    rng = random.Random(7)
    with open(sys.argv[1], encoding="utf-8") as file:
        labels = [row["answer"] for row in json.load(file)]
    integers = [str(rng.randint(-20, 2000)) for _ in range(30)] + ["109200000", "0", "7"]
    seen = set()
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        while len(seen) < 1000:
            label = rng.choice(integers if rng.random() < 0.4 else labels)
            answer = label if rng.random() < 0.85 else rng.choice(integers + labels)
            for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3])):
                answer = rng.choice(CHANGES)(answer)
            response = rng.choice(FRAMES).replace("%s", answer)
            if (label, response) in seen:
                continue
            seen.add((label, response))
            columns = [
                verdict(lambda: miles_math.grade_answer_verl(response, label)),
                verdict(lambda: slime_math.grade_answer_verl(response, label)),
                verdict(lambda: gsm8k.compute_score(response, label, method="strict")),
                verdict(lambda: gsm8k.compute_score(response, label, method="flexible")),
                verdict(lambda: dapo.compute_score(response, label)["score"]),
            ]
            print(json.dumps(label)[1:-1], json.dumps(response, ensure_ascii=False)[1:-1], *columns, sep="\t", file=out)


if __name__ == "__main__":
    main()
