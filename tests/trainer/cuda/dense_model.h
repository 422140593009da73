// A dense model that runs on tensor cores, for tests of the trainer on a GPU.
#pragma once

namespace orrery::trainer {

inline constexpr const char* kDense =
    R"({"vocab_size": 512, "num_hidden_layers": 3, "hidden_size": 256,
  "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "hidden_act": "silu",
  "torch_dtype": "bfloat16", "initializer_range": 0.05, "tie_word_embeddings": true,
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})";

}  // namespace orrery::trainer
