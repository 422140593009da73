"""Makes the GGUF fixtures of gguf_test.cc and import_test.cc under data/.

quants.gguf          one matrix in every supported type, written by the gguf library
quants.f32           the float32 values that the library reads back from them, one after the other
tiny_FAMILY.gguf     a tiny random bfloat16 model of each family, as llama.cpp's converter lays it out
tiny_FAMILY.json     what the import must give: config keys, SHA-256 of each Hugging Face tensor's
                     bytes, and the tokenizer.json that the tokenizers library makes of the same lists

    python make_golden_gguf.py     (needs torch, transformers, tokenizers, gguf, numpy)
"""

import hashlib
import json
import pathlib
import tempfile

import gguf
import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

DATA = pathlib.Path(__file__).parent / "data"
TEXT = ["Tom has 12 apples and buys 30 more; how many apples has he now? 12+30=42. #### 42",
        "She wrote 3 letters, he wrote 4 letters. The answer is 7.", "größer als 日本 😀"] * 3
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def quants():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((3, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(DATA / "quants.gguf", "llama")
    reference = []
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"):
        kind = gguf.GGMLQuantizationType[name]
        if name == "F32":
            packed = values
        elif name == "F16":
            packed = values.astype(np.float16)
        else:
            packed = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        reference.append(gguf.quants.dequantize(packed, kind).astype(np.float32))
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -300)
    writer.add_uint32("a.u32", 4000000000)
    writer.add_int32("a.i32", -5)
    writer.add_uint64("a.u64", 2**63 - 1)
    writer.add_int64("a.i64", -(2**40))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.25)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "größer")
    writer.add_array("a.ints", [1, 2, 3])
    writer.add_array("a.floats", [1.5, 2.5])
    writer.add_array("a.strings", ["x", "", "yz"])
    writer.add_array("a.nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.concatenate([part.reshape(-1) for part in reference]).tofile(DATA / "quants.f32")


def byte_level(pre, nfc=False, ignore_merges=False):
    """A byte-level BPE tokenizer trained on TEXT; special tokens come last, as in Qwen."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pre)
    tokenizer.decoder = decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True)
                                  for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    return tokenizer


def sentence_piece():
    """Llama-2 style: bytes for fallback, pieces with scores, merges as transformers derives them."""
    words = ["▁", "a", "e", "l", "p", "s", "t", "h", "r", "n", "o", "▁a", "pp", "le", "ple", "▁app",
             "▁apple", "▁apples", "th", "he", "▁th", "▁the", "er", "ö", "日", "re", "▁t"]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + words
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words)
    # Equal scores on purpose: ▁a, pp and le have the same one.
    scores = [0.0] * 259 + [-float(max(0, i - 2)) if i > 13 else -1.0 for i in range(len(words))]
    from transformers.convert_slow_tokenizer import generate_merges
    normal = {p: s for p, s, k in zip(pieces, scores, kinds) if k == NORMAL}
    merges = generate_merges({p: i for i, p in enumerate(pieces) if p in normal}, normal)
    tokenizer = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges,
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                 normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True)
                                  for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tokenizer, pieces, scores, kinds


def tokenizer_keys(writer, family, tokenizer, pre, vocab_size):
    """tokenizer.ggml.* of a byte-level tokenizer, padded to vocab_size as the converter does."""
    model = json.loads(tokenizer.to_str())
    added = {token["id"]: token for token in model["added_tokens"]}
    tokens, kinds = [], []
    by_id = {i: t for t, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    for i in range(vocab_size):
        if i not in by_id:
            tokens.append(f"[PAD{i}]")
            kinds.append(UNUSED)
            continue
        tokens.append(by_id[i])
        kinds.append((CONTROL if added[i]["special"] else USER) if i in added else NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(m) for m in model["model"]["merges"]])
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_chat_template("{{ messages[0]['content'] }}\n\"größer\"")


def model_keys(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.model_type.startswith("qwen3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type == "llama":
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)
    if config.model_type == "qwen3_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def permute(weight, heads):
    """Half-split rotary pairs to neighbours: rows of a head [2, half] become [half, 2]."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, 2, rows // 2, -1).transpose(1, 2).reshape(weight.shape)


NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp"}


def gguf_tensors(state, config):
    """GGUF name to tensor, from Hugging Face names (experts one by one)."""
    out = {"token_embd.weight": state["model.embed_tokens.weight"],
           "output_norm.weight": state["model.norm.weight"]}
    if "lm_head.weight" in state:
        out["output.weight"] = state["lm_head.weight"]
    for name, tensor in state.items():
        if not name.startswith("model.layers.") or ".experts." in name:
            continue
        _, _, layer, rest = name.split(".", 3)
        module, kind = rest.rsplit(".", 1)
        if config.model_type == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if "q_proj" in module else config.num_key_value_heads
            tensor = permute(tensor, heads)
        out[f"blk.{layer}.{NAMES[module]}.{kind}"] = tensor
    for layer in range(config.num_hidden_layers if config.model_type == "qwen3_moe" else 0):
        for matrix in ("gate", "up", "down"):
            out[f"blk.{layer}.ffn_{matrix}_exps.weight"] = torch.stack(
                [state[f"model.layers.{layer}.mlp.experts.{e}.{matrix}_proj.weight"]
                 for e in range(config.num_experts)])
    return out


def write_tensors(writer, tensors):
    for name, tensor in tensors.items():
        if tensor.dim() == 1:  # the converter keeps vectors in float32
            writer.add_tensor(name, tensor.float().numpy())
        else:
            packed = tensor.contiguous().view(torch.uint16).numpy().view(np.uint8)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.BF16)


def expert_state(model):
    """The state with experts under their checkpoint names, whatever the library keeps in memory."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        from safetensors.torch import load_file
        return load_file(pathlib.Path(folder) / "model.safetensors")


def tiny(family, config, architecture, write_tokenizer, rope_freqs=None):
    torch.manual_seed(len(family))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too are to show a mix-up
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (parameter.dim() == 1))
    state = expert_state(model)
    path = DATA / f"tiny_{family}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    model_keys(writer, config)
    tokenizer = write_tokenizer(writer)
    write_tensors(writer, gguf_tensors(state, config))
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    golden = {
        "tensors": {name: hashlib.sha256(t.contiguous().view(torch.uint16).numpy().tobytes())
                    .hexdigest() for name, t in sorted(state.items())},
        "tokenizer": json.loads(tokenizer.to_str()),
    }
    (DATA / f"tiny_{family}.json").write_text(
        json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    DATA.mkdir(exist_ok=True)
    quants()
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=128)

    def llama_tokenizer(writer):
        tokenizer, pieces, scores, kinds = sentence_piece()
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(pieces)
        writer.add_token_scores(scores)
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        return tokenizer

    def byte_level_writer(family, tokenizer, pre, vocab_size):
        def write(writer):
            tokenizer_keys(writer, family, tokenizer, pre, vocab_size)
            return tokenizer
        return write

    tiny("llama", transformers.LlamaConfig(
        vocab_size=286, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False, **shape), "llama", llama_tokenizer)
    split = [pre_tokenizers.Split(Regex(QWEN), "isolated"),
             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    theta = {"rope_type": "default", "rope_theta": 1000000.0}
    tiny("qwen2", transformers.Qwen2Config(
        vocab_size=304, rms_norm_eps=1e-6, rope_parameters=theta, tie_word_embeddings=True, **shape),
        "qwen2", byte_level_writer("qwen2", byte_level(split, nfc=True), "qwen2", 304))
    tiny("qwen3", transformers.Qwen3Config(
        vocab_size=304, rms_norm_eps=1e-6, rope_parameters=theta, tie_word_embeddings=True,
        head_dim=16, **shape),
        "qwen3", byte_level_writer("qwen3", byte_level(split, nfc=True), "qwen2", 304))
    tiny("qwen3moe", transformers.Qwen3MoeConfig(
        vocab_size=304, rms_norm_eps=1e-6, rope_parameters=theta, tie_word_embeddings=False,
        head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], **shape),
        "qwen3moe", byte_level_writer("qwen3moe", byte_level(split, nfc=True), "qwen2", 304))


if __name__ == "__main__":
    main()
