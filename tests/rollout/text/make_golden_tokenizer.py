#!/usr/bin/env python3
"""Golden values for the tokenizer tests, from Hugging Face's tokenizers (PyPI, 0.23.3).

  make_golden_tokenizer.py            small fixtures: data/tokenizer/NAME.json and NAME.golden.json
  make_golden_tokenizer.py --golden   only the golden files, for fixtures that exist
  make_golden_tokenizer.py --real DIR DIR/tokenizer.json of a real model: writes DIR/golden.json,
                                      which tokenizer_real_test finds through $ORRERY_TOKENIZERS

A golden file holds encodings (the input as text, or as hexadecimal bytes where it is not UTF-8, which
the oracle sees after Python's errors="replace") and decodings of id lists.
"""
import hashlib
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

DATA = pathlib.Path(__file__).parent / "data" / "tokenizer"

TRAINING = [
    "Mia has 12 apples and buys 3 boxes with 24 apples each. How many apples does she have now?",
    "3*24=72. 12+72=84. #### 84\n",
    "They're sure that we've seen what you'll do; I'd say it's Tom's. HE'S, WE'LL.\r\n\r\n",
    "Größe, naïve café, Ærøskøbing; Привет, мир! Γειά σου Κόσμε.  你好，世界。こんにちは 안녕하세요",
    "def f(x):\n    return {'a': x[0], \"b\": x ** 2}  # comment\n\tif (a <= b) && !c {...}\n",
    "the then there these those this that than though through   spaces    here\n\n\n",
    "مرحبا ١٢٣ नमस्ते १२३ שלום สวัสดี 👩‍💻 👍🏽 🇩🇪 ½ Ⅷ ² x² ≤ ∑ € \u00a0\u3000",
] * 3

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]",
                                                            r"[^\s\p{L}\p{M}\p{N}]")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def train(tokenizer, size, alphabet=None, special=()):
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=list(special),
                                  initial_alphabet=alphabet or [])
    tokenizer.train_from_iterator(TRAINING, trainer)


def byte_level_tokenizer(pre_tokenizer, normalizer=None, size=420, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, size, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def qwen():
    pre = pre_tokenizers.Sequence([split(QWEN), byte_level()])
    tokenizer = byte_level_tokenizer(pre, normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in
                          ("<tool_call>", "</tool_call>", "<think>", "</think>")])
    return tokenizer


def qwen35():
    return byte_level_tokenizer(pre_tokenizers.Sequence([split(QWEN35), byte_level()]),
                                normalizers.NFC())


def llama3():
    pre = pre_tokenizers.Sequence([split(LLAMA3), byte_level()])
    tokenizer = byte_level_tokenizer(pre)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
               "<|end_header_id|>", "<|eot_id|>"]
    document = json.loads(tokenizer.to_str())
    vocab = document["model"]["vocab"]
    # Words that merging does not reach: only ignore_merges gives them.
    for word in ("Ġelephant", "zebra", "Ġ1234", "ĠÐ¼Ð¸ÑĢ"):
        vocab[word] = len(vocab)
    document["model"]["ignore_merges"] = True
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens(special)
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing("<|begin_of_text|> $A", None,
                                             [("<|begin_of_text|>", bos)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template])
    return tokenizer, document["model"]["merges"]


def gpt2():
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                   byte_level(prefix=True, regex=True)])
    tokenizer = byte_level_tokenizer(pre)
    # <mask> is GPT-2's and RoBERTa's way of taking the space before it along.
    tokenizer.add_special_tokens(["<|endoftext|>", AddedToken("<mask>", lstrip=True, special=True)])
    eos = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        "<|endoftext|> $A <|endoftext|>", None, [("<|endoftext|>", eos)])
    return tokenizer


def deepseek():
    pre = pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
                                   split(DEEPSEEK), byte_level()])
    tokenizer = byte_level_tokenizer(pre, normalizers.Sequence([]))
    tokenizer.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in
                          ("<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>")])
    tokenizer.add_special_tokens([f"<｜place▁holder▁no▁{i}｜>" for i in range(60)])
    return tokenizer


def llama2():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                 normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    train(tokenizer, 460, special=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])
    # Only the first three are added tokens; the bytes are ordinary ones.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    document["model"]["vocab"] = {t: i for t, i in document["model"]["vocab"].items()}
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None,
                                                             [("<s>", 1), ("</s>", 2)])
    tokenizer.add_tokens([AddedToken("New York", normalized=True)])
    return tokenizer


def metaspace():
    """No byte fallback: unknown characters are single <unk>, and few characters are known."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Strip(left=False, right=True), normalizers.Lowercase(),
        normalizers.Replace(Regex(r" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, limit_alphabet=60,
                                  special_tokens=["<unk>", "<s>"])
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_tokens([AddedToken("Hello World", normalized=True),
                          AddedToken("<RAW>", normalized=False)])
    return tokenizer


def metaspace_always():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.NFKD()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, limit_alphabet=80,
                                  special_tokens=["<unk>", "<s>"])
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " "),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def behaviors():
    """Every behaviour of Split, inverted ones among them; added tokens with every option."""
    pre = pre_tokenizers.Sequence([
        split(r"[0-9]+", "merged_with_previous"), split(r"[.,]", "merged_with_next"),
        split(r"\s", "contiguous"), split(r"[A-Za-z-]+", "isolated", invert=True),
        pre_tokenizers.Split("#", "removed"), split(r"(?<=x)(?=y)", "isolated"),
        split(r"[^!]+", "contiguous", invert=True), byte_level()])
    tokenizer = byte_level_tokenizer(pre, normalizers.NFD(), size=330)
    tokenizer.add_tokens([
        AddedToken("LEFT", lstrip=True, normalized=False),
        AddedToken("RIGHT", rstrip=True, normalized=False),
        AddedToken("BOTH", lstrip=True, rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("wordy", normalized=False), AddedToken("ab", normalized=False),
        AddedToken("abcd", normalized=False), AddedToken("bcde", normalized=False),
        AddedToken("café", normalized=True), AddedToken("Ġsp ace", normalized=False),
        AddedToken("é", normalized=False)])
    return tokenizer


def no_decoder():
    """A model alone: no normalizer, pre-tokenizer, decoder; characters without a token vanish."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False, limit_alphabet=50)
    tokenizer.train_from_iterator([t[:40] for t in TRAINING], trainer)
    return tokenizer


FIXTURES = [qwen, qwen35, llama3, gpt2, deepseek, llama2, metaspace, metaspace_always, behaviors,
            no_decoder]

TEXTS = TRAINING[:7] + [
    "", " ", "  ", "a", "\n", "\r\n", " \n \n\n", "\t\t x", "Hello World", "hello  world   ",
    "Line one\r\nLine two\r\n\r\n  indented\r", "I'm you're HE'LL they'Ve it's 'TIS 'ſ O'Reilly",
    "12345 1,234.56 ½ Ⅷ ² ৪৫ 一二三 𝟘𝟙 ١٢", "e\u0301a\u0308\u0323 o\u0323\u0308 A\u030a Å \u0344",
    "\u1112\u1161\u11ab \ud55c\u11a8 \u1100\u1161 가\u11a8", "가나다 각 한국어",
    "👨‍👩‍👧‍👦 👩🏽‍💻 🇩🇪🇫🇷 🏳️‍🌈 ❤️‍🔥 1️⃣ ☺️", "a\u00a0b\u2003c\u3000d\u200be\u180ef\u202fg\u0085h\u2028i",
    "你好，世界！今天天气怎么样？カタカナー〜ひらがな", "مرحبا بالعالم، ١٢٣٤٥", "नमस्ते दुनिया १२३",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start <|im_start|><|im_end|> |im_end|> <<|endoftext|>>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "<｜begin▁of▁sentence｜><｜User｜>hello<｜Assistant｜></think> <｜place▁holder▁no▁12｜>",
    "x <mask> y<mask>  <|endoftext|>", "<s>foo</s> <unk>bar <s> baz", "▁▁a ▁b", "Ġhello Ċ",
    "a LEFT b RIGHT c  BOTH  d LEFTRIGHT e\u3000LEFT BOTH BOTH", "word words sword a word. word_ wordy éword",
    "abcdex abcd abcde ab abc bcde xxabcde", "café cafe\u0301 CAFÉ é e\u0301 Ġsp ace",
    "New York NewYork in New  York", "hello world Hello World HELLO WORLD <RAW> <raw>",
    "one.two,three 12a34 #5##6 x-y xyxyxy !!! a!b!!c #", "elephant an elephant zebra 1234 1234 мир",
    "a" * 400, " " * 70, "ab" * 60 + "\n" * 50, "日本" * 40, "é" * 60, "!?" * 80 + "9" * 60,
    "\x00\x01\x1f\x7f", "𝓗𝓮𝓵𝓵𝓸 ﬁ ﬂ ẛ̣ ﷺ ㎏ Å İstanbul ΣΑΣ ſs", "zalgo: Z̷̢̛͓a̸l̴g̵o̶",
    # Characters of Unicode 15 and 16, and marks younger than Unicode 9.
    "\U00031350\U0002ebf0 \U00010d4a\U00010d50\U00010d70 \U00010d40\U00010d41 \U00011bc0a \ua7cb\u1c89\u1c8a",
    "a\u0345\u0898 a\u07fd\u0334 \U00011935\U00011930 \U00011f02\U00011f41 \U0001fae8\U0001fadf x",
]

BYTES = [b"\xff", b"a\x80b", b"\xc3", b"\xc3(", b"\xe4\xbd", b"\xe4\xbd\xa0\xe5", b"\xed\xa0\x80",
         b"\xf0\x9f\x91", b"\xf0\x9f\x91\xa9\xf0\x9f x", b"\xf5\x80\x80\x80", b"\xe0\x80\x80",
         b"ok \xfe\xff <|im_end|> \xc0\xaf", b"\xf4\x90\x80\x80", b"caf\xc3\xa9 caf\xe9"]


def random_texts(count, seed, added):
    rng = random.Random(seed)
    pools = [range(32, 127), range(0xA0, 0x250), range(0x300, 0x370), range(0x370, 0x900),
             range(0x1100, 0x1200), range(0x2000, 0x2100), range(0x4E00, 0x4E80),
             range(0xAC00, 0xAC80), range(0x1F300, 0x1F700), range(0x10000, 0x12000),
             [0x20, 0x20, 0x9, 0xA, 0xD, 0xA0], range(0x61, 0x6B)]
    for _ in range(count):
        text = ""
        for _ in range(rng.randint(1, 7)):
            if added and rng.random() < 0.15:
                text += rng.choice(added)
            else:
                pool = rng.choice(pools)
                text += "".join(chr(rng.choice(pool)) for _ in range(rng.randint(1, 5)))
        yield text


def golden(tokenizer, texts, inputs_of_bytes):
    encodings, all_ids = [], []
    for item in list(texts) + list(inputs_of_bytes):
        text = item if isinstance(item, str) else item.decode("utf-8", "replace")
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        entry = {"text": item} if isinstance(item, str) else {"hex": item.hex()}
        entry["ids"] = ids
        special = tokenizer.encode(text, add_special_tokens=True).ids
        if special != ids:
            entry["special"] = special
        encodings.append(entry)
        all_ids.append(ids)
    rng = random.Random(7)
    size = tokenizer.get_vocab_size()
    lists = [ids for ids in all_ids if len(ids) < 60]
    for ids in all_ids:
        if len(ids) > 2:
            begin = rng.randrange(len(ids))
            lists.append(ids[begin:begin + rng.randint(1, 12)])
    for _ in range(40):
        lists.append([rng.randrange(size + 20) for _ in range(rng.randint(1, 10))])
    decodings = [{"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False),
                  "skipped": tokenizer.decode(ids, skip_special_tokens=True)} for ids in lists]
    return {"encodings": encodings, "decodings": decodings}


def write(path, value):
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in values) + "\n]"
             for key, values in value.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_golden(tokenizer, path, real=False):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    count = 3000 if real else 40
    write(path, golden(tokenizer, TEXTS + list(random_texts(count, 11, added)), BYTES))


def write_unicode():
    """Digests over all code points: categories and white space as the oracle's regular expressions
    see them, and its normal forms, alone and between a mark before and a mark behind."""
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c != 1]
    blocks = [points[i:i + 4096] for i in range(0, len(points), 4096)]
    result = []
    for name in ["L", "M", "N", "P", "S", "Z", "Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "s"]:
        pattern = r"\s" if name == "s" else r"\p{%s}" % name
        replace = normalizers.Replace(Regex(pattern), "")
        members = bytearray()
        for block in blocks:
            # No class has U+0001, which parts the characters here.
            parts = replace.normalize_str("\x01".join(block)).split("\x01")
            members += bytes(part == "" for part in parts)
        result.append({"class": name, "count": sum(members),
                       "sha256": hashlib.sha256(bytes(members)).hexdigest()})
    forms = []
    for name in ["NFC", "NFD", "NFKC", "NFKD"]:
        form = getattr(normalizers, name)()
        digest = hashlib.sha256()
        for block in blocks:
            # A line feed takes no part in any normal form.
            lines = [line for c in block for line in (c, "a\u0345" + c, "a" + c + "\u0334",
                                                      c + "\u0301")]
            digest.update(form.normalize_str("\n".join(lines)).encode() + b"\n")
        forms.append({"form": name, "sha256": digest.hexdigest()})
    write(DATA / "unicode.golden.json", {"classes": result, "forms": forms})


def main():
    if sys.argv[1:2] == ["--real"]:
        folder = pathlib.Path(sys.argv[2])
        write_golden(Tokenizer.from_file(str(folder / "tokenizer.json")), folder / "golden.json", True)
        return
    DATA.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] != ["--golden"]:
        for make in FIXTURES:
            made = make()
            tokenizer, string_merges = made if isinstance(made, tuple) else (made, None)
            document = json.loads(tokenizer.to_str())
            if string_merges is not None:  # the older form, which files of Llama 3 have
                document["model"]["merges"] = string_merges
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            (DATA / f"{make.__name__}.json").write_text(text + "\n")
        write_unicode()
    for path in sorted(DATA.glob("*.json")):
        if not path.name.endswith(".golden.json"):
            tokenizer = Tokenizer.from_file(str(path))
            write_golden(tokenizer, path.with_name(path.stem + ".golden.json"))


main()
