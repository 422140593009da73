#!/usr/bin/env python3
"""Makes data/math_golden.tsv: pairs of a true and a given answer with the verdict of math-verify.

    make_golden_math.py MATH500.json OUT.tsv        (needs: pip install math-verify==0.9.0)

Every answer of MATH-500 is paired with systematic rewritings of itself that are right, and with answers
nearby that are wrong. A line: kind, truth, given, 1 or 0 by construction, math-verify's verdict.
"""

import json
import re
import sys
from fractions import Fraction

from math_verify import LatexExtractionConfig, ExprExtractionConfig, parse, verify

INTEGER = re.compile(r"-?\d+$")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}$")


def right(answer):
    """(kind, text) of answers that mean the same."""
    yield "same", answer
    if not re.search(r"\d,(\\!\s*)?\d{3}", answer):
        yield "spaces", re.sub(r"(?<=[^\\ ])([+\-=,])", r" \1 ", answer)
    yield "dollars", "$" + answer + "$"
    yield "full stop", answer + "."
    if "\\left" not in answer and "(" in answer:
        sized = answer.replace("(", "\\left(").replace(")", "\\right)")
        yield "left right", sized if sized.count("\\left") == sized.count("\\right") else answer
    if "\\left" in answer:
        yield "no left right", answer.replace("\\left", "").replace("\\right", "")
    if "\\frac{" in answer:
        yield "dfrac", answer.replace("\\frac{", "\\dfrac{")
        yield "tfrac", answer.replace("\\frac{", "\\tfrac{")
    match = FRACTION.match(answer)
    if match:
        sign, top, bottom = match.groups()
        value = Fraction(int(top), int(bottom))
        yield "a/b", f"{sign}{top}/{bottom}"
        yield "braceless numerator", f"{sign}\\frac{{{top}}}{bottom}" if len(bottom) == 1 else answer
        yield "unreduced", f"{sign}\\frac{{{3 * value.numerator}}}{{{3 * value.denominator}}}"
        if not sign:
            yield "sign inside", f"\\frac{{-{top}}}{{-{bottom}}}"
        bare = value.denominator
        for prime in (2, 5):
            while bare % prime == 0:
                bare //= prime
        if bare == 1 and value.denominator > 1:
            digits = f"{float(value):.12f}".rstrip("0")
            yield "decimal", sign + digits
            yield "decimal without 0", sign + digits.lstrip("0")
        if value > 1 and value.denominator > 1:
            whole, rest = divmod(value.numerator, value.denominator)
            yield "mixed", f"{sign}{whole}\\frac{{{rest}}}{{{value.denominator}}}"
            yield "plain mixed", f"{sign}{whole} {rest}/{value.denominator}"
    if INTEGER.match(answer):
        yield ".0", answer + ".0"
        yield "x =", "x = " + answer
        yield "text unit", answer + "\\text{ units}"
        yield "boxed text", "\\text{" + answer + "}"
        yield "product", f"\\frac{{{2 * int(answer)}}}{{2}}"
        if abs(int(answer)) >= 1000:
            grouped = f"{int(answer):,}"
            yield "thousands", grouped
            yield "latex thousands", grouped.replace(",", "{,}")
            yield "thin thousands", grouped.replace(",", ",\\!")
    if "^\\circ" in answer:
        yield "no degree", answer.replace("^\\circ", "")
        yield "braced degree", answer.replace("^\\circ", "^{\\circ}")
        yield "degrees", answer.replace("^\\circ", "\\text{ degrees}")
    if "\\$" in answer:
        yield "no currency", answer.replace("\\$", "")
    if re.search(r"\\(text|mbox)\{ ", answer):
        yield "no unit", re.sub(r"\\(text|mbox)\{ .*", "", answer)
    text = re.match(r"\\text\{\(?(\w+)\)?\}$", answer)
    if text:
        yield "plain word", text.group(1)
        yield "text word", "\\text{" + text.group(1) + "}"
    if re.fullmatch(r"[^()\[\]{}]*,[^()\[\]{}]*", answer) and "\\" not in answer and not re.search(r"\d,\d{3}", answer):
        parts = [part.strip() for part in answer.split(",")]
        yield "reversed list", ", ".join(reversed(parts))
        yield "set", "\\{" + ",".join(parts) + "\\}"
        yield "and", " and ".join(parts)
    if answer.startswith("\\{"):
        inside = answer[2:-2].split(",")
        yield "reversed set", "\\{" + ",".join(reversed(inside)) + "\\}"
    if "\\cup" in answer:
        yield "reversed union", " \\cup ".join(reversed([part.strip() for part in answer.split("\\cup")]))
    if "pmatrix" in answer:
        yield "bmatrix", answer.replace("pmatrix", "bmatrix")
    if "\\pm" in answer and "{" not in answer.split("\\pm")[0]:
        left, rest = [part.strip() for part in answer.split("\\pm")]
        yield "plus minus as two", f"{left} + {rest}, {left} - {rest}"
    root = re.fullmatch(r"(\d+)\s*\\sqrt\{?(\d+)\}?", answer)
    if root:
        factor, inside = int(root.group(1)), int(root.group(2))
        yield "root inside", f"\\sqrt{{{factor * factor * inside}}}"
        yield "root product", f"{factor} \\cdot \\sqrt{{{inside}}}"
        yield "plain root", f"{factor}*sqrt({inside})"
    if re.fullmatch(r"[-+ 0-9a-z^]+", answer) and re.search("[a-hj-z]", answer) and " " in answer:
        terms = re.sub(r"\s*([-+])\s*", r" \1", answer).split()
        if len(terms) > 1:
            first, rest = terms[0], terms[1:]
            moved = rest[-1].lstrip("+") + " " + " ".join([first if first[0] in "+-" else "+" + first] + rest[:-1])
            yield "moved term", moved


    yield from plain(answer)
    if re.match(r"x \\in ", answer):
        yield "no x in", answer[6:]
    interval = re.fullmatch(r"([(\[])\s*([^,]*),\s*([^,]*?)\s*([)\]])", answer.replace("\\left", "").replace("\\right", ""))
    if interval and ("\\infty" in answer or "[" in answer or "]" in answer):
        left, low, high, close = interval.groups()
        less, less_close = ("<" if left == "(" else "\\le"), ("<" if close == ")" else "\\le")
        low_part = "" if "\\infty" in low else f"{low} {less} "
        high_part = "" if "\\infty" in high else f" {less_close} {high}"
        yield "inequality", f"{low_part}x{high_part}"


def plain(answer):
    """Rewritings without LaTeX, as a model that was not told to use it answers."""
    text = re.sub(r"\\(left|right)", "", answer)
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*(?:\{[^{}]*\})?[^{}]*)\}\s*\{([^{}]*)\}", r"(\1)/(\2)", text)
    text = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text)
    text = text.replace("\\pi", "pi").replace("\\infty", "infinity").replace("^\\circ", " degrees")
    mixed = re.search(r"\d\s*\\frac", answer)
    if "\\" not in text and text != answer and not mixed:
        yield "ascii", text
        yield "unicode", text.replace("sqrt", "√").replace("pi", "π").replace("infinity", "∞").replace("-", "−")


def wrong(answer):
    """(kind, text) of answers that look alike and are not."""
    number = re.search(r"\d+", answer)
    if number and "_" not in answer:
        start, end = number.span()
        yield "one more", answer[:start] + str(int(number.group()) + 1) + answer[end:]
        yield "a digit more", answer[:end] + "1" + answer[end:]
        if int(number.group()) and "." not in answer:
            yield "tenfold", answer[:end] + "0" + answer[end:]
    if INTEGER.match(answer):
        yield "negative", str(-int(answer)) if int(answer) else "1"
        yield "half more", answer + ".5"
        yield "nearly", (str(int(answer) - 1) if int(answer) > 0 else "-0") + ".9999"
        yield "also another", answer + ", " + str(int(answer) + 2)
        if int(answer):
            yield "a hundredth", answer + "/100"
        yield "square", answer + "^2" if abs(int(answer)) > 1 else "3^2"
    match = FRACTION.match(answer)
    if match and match.group(2) != match.group(3):
        sign, top, bottom = match.groups()
        yield "inverted", f"{sign}\\frac{{{bottom}}}{{{top}}}" if int(top) else "1"
        yield "a digit behind", answer + "1"
        if 1000 * int(top) % int(bottom):
            yield "rounded", f"{sign}{int(top) / int(bottom):.3f}"
        if 10**6 * int(top) % int(bottom):
            yield "rounded to 6", f"{sign}{int(top) / int(bottom):.6f}"
    if re.match(r"[(\[].*,.*[)\]]$", answer) and "\\cup" not in answer:
        inside = answer[1:-1]
        flip = {"(": "[", "[": "("}[answer[0]] + inside + answer[-1]
        yield "other bracket", flip
        parts = inside.split(",")
        if len(parts) == 2 and parts[0].strip() != parts[1].strip():
            yield "swapped", answer[0] + parts[1].strip() + "," + parts[0].strip() + answer[-1]
    if "\\sqrt" in answer:
        yield "no root", re.sub(r"\\sqrt\{?([^{}])", r"{\1", answer) if "{" in answer else answer.replace("\\sqrt", "")
    if "\\pi" in answer:
        yield "no pi", answer.replace("\\pi", "").strip() or "1"
        yield "pi is 3.14", answer.replace("\\pi", "\\cdot 3.14") if answer != "\\pi" else "3.14"
    if "\\pm" in answer:
        yield "only plus", answer.replace("\\pm", "+")
        yield "only minus", answer.replace("\\pm", "-")
    if "_" in answer:
        yield "other base", re.sub(r"_\{?(\d)\}?", lambda m: f"_{int(m.group(1)) + 1}", answer)
        yield "other digits", "1" + answer
    if "\\cup" in answer:
        yield "one part", answer.split("\\cup")[0].strip()
        yield "intersection", answer.replace("\\cup", "\\cap")
    if answer.startswith("\\text"):
        yield "another word", "\\text{other}"
        yield "empty text", "\\text{}"
    if re.fullmatch(r"[-+ 0-9a-z^]+", answer) and re.search("[a-hj-z]", answer):
        yield "other sign", answer.replace("+", "-") if "+" in answer else "-(" + answer + ")"
        yield "other letter", re.sub("[a-hj-z]", "w", answer)
    if "=" in answer:
        yield "other side", answer + " + 1"
    for kind, text in plain(answer):
        digit = re.search(r"[1-9]", text)
        if kind == "ascii" and digit:
            yield "other digit in ascii", text[: digit.start()] + str(int(digit.group()) % 9 + 1) + text[digit.end() :]
    if answer.startswith("x \\in "):
        yield "other end", answer.replace("[", "(")
    if "\\infty" in answer and "\\cup" not in answer:
        yield "other infinity", answer.replace("-\\infty", "\\infty") if "-\\infty" in answer else answer.replace("\\infty", "100")
    if "pmatrix" in answer:
        yield "one row", "(" + answer.split("}")[1].split("\\end")[0].replace("\\\\", ",").strip() + ")"
    if re.fullmatch(r"\d+(\.\d+)?i|.*[-+] ?\d*i", answer):
        yield "conjugate", answer.replace("+", "-") if "+" in answer else answer.replace(" - ", " + ")


def math_verify(truth, given):
    """1, 0, or "error" where it raises; given as in a response, in a box."""
    try:
        gold = parse(f"\\boxed{{{truth}}}", [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=60)
        answer = parse(f"\\boxed{{{given}}}", [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=60)
        return str(int(verify(gold, answer, timeout_seconds=60)))
    except Exception:  # noqa: BLE001
        return "error"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        answers = [row["answer"] for row in json.load(file)]
    seen = set()
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for truth in answers:
            pairs = [(kind, text, 1) for kind, text in right(truth)]
            pairs += [(kind, text, 0) for kind, text in wrong(truth)]
            for kind, given, equal in pairs:
                if (truth, given) in seen or (kind != "same" and given == truth):
                    continue
                seen.add((truth, given))
                print(kind, truth, given, equal, math_verify(truth, given), sep="\t", file=out)


if __name__ == "__main__":
    main()
