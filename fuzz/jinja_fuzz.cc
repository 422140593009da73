// Any bytes as a chat template, and what follows a NUL byte as the JSON of its variables: parsed
// and rendered, or refused. The limits are small, so that an input which runs into one is still
// quick.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "rollout/text/jinja.h"
#include "rollout/text/jinja_json.h"

namespace {

using namespace orrery::rollout::jinja;

constexpr std::string_view kVariables =
    R"({"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "tools": [{"name": "f", "args": {"x": 1.5}}],
    "messages": [{"role": "system", "content": " Ünïcode \n"}, {"role": "user", "content": "a</think>b"},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, true]}}}]}]})";
constexpr Limits kLimits{.max_steps = 200'000,
                         .max_allocated_bytes = 8 << 20,
                         .max_output_bytes = 1 << 20,
                         .max_depth = 100};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  const bool given = split != std::string_view::npos;
  const auto variables = FromJson(given ? input.substr(split + 1) : kVariables, "variables");
  if (!given && !variables.ok()) std::abort();
  const auto parsed = Template::Parse(input.substr(0, split), "fuzz");
  if (!parsed.ok() || !variables.ok() || !variables->Is(Kind::kMap)) return 0;
  const auto rendered = parsed->Render(variables->map(), kLimits, 0);
  if (rendered.ok() && rendered->size() > kLimits.max_output_bytes) std::abort();
  // The same again gives the same.
  const auto again = parsed->Render(variables->map(), kLimits, 0);
  if (again.ok() != rendered.ok() || (again.ok() && *again != *rendered)) std::abort();
  return 0;
}
