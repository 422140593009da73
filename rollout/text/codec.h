// A checkpoint's tokenizer and chat template as the one TextCodec of a run. Immutable: any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orchestrator/interfaces.h"
#include "rollout/text/chat_template.h"
#include "rollout/text/tokenizer.h"

namespace orrery::rollout {

class CheckpointCodec : public TextCodec {
 public:
  // variables: what the template reads besides messages, as text ("false" and "true" are booleans).
  static absl::StatusOr<std::unique_ptr<CheckpointCodec>> Load(
      const std::string& folder, const std::map<std::string, std::string>& variables);

  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const override;
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(const Prompt& prompt) const override;
  // What follows a sampled assistant turn that ended with the stop token: `added` messages and the
  // opening of the next turn. The last of `previous` is that turn.
  absl::StatusOr<std::vector<int32_t>> EncodeNextTurn(std::span<const Message> previous,
                                                      std::span<const Message> added,
                                                      int32_t stop_token) const;
  // The text of each id; joined they are the text of all. A piece may be empty.
  std::vector<std::string> Pieces(std::span<const int32_t> ids) const;
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool has_chat_template() const { return template_.has_value(); }

 private:
  CheckpointCodec() = default;
  RenderOptions Options(bool add_generation_prompt) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::map<std::string, jinja::Value> variables_;
};

}  // namespace orrery::rollout
