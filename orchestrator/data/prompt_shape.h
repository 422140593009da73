// The form of prompts that data.prompt_template, data.system_prompt and data.chat ask for.
// Constant, safe from any thread. Errors name what is wrong and the fix, without the row's place.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "configs/experiment.h"
#include "orchestrator/types.h"

namespace orrery::data {

class PromptShape {
 public:
  // A row's field as text; {name} in the template asks for it.
  using Lookup = std::function<absl::StatusOr<std::string>(std::string_view field)>;

  explicit PromptShape(const configs::DataConfig& config);

  // Fills messages or text of `prompt`.
  absl::Status FromText(std::string_view text, const Lookup& lookup, Prompt& prompt) const;

  // The same from chat messages; the template applies to the last message of the user. What follows
  // that message is the solution.
  absl::Status FromMessages(std::vector<Message> messages, const Lookup& lookup,
                            Prompt& prompt) const;

  // Fields besides {prompt} that the template asks for.
  std::vector<std::string> FieldsAskedFor() const;

 private:
  // Literal text, or the name of a field.
  struct Piece {
    bool is_field = false;
    std::string text;
  };

  static std::vector<Piece> ParseTemplate(std::string_view text);
  absl::StatusOr<std::string> Fill(std::string_view prompt_text, const Lookup& lookup) const;
  absl::Status AddSystemPrompt(std::vector<Message>& messages) const;

  std::vector<Piece> pieces_;  // empty: the prompt as it is
  std::string system_prompt_;
  bool chat_;
};

}  // namespace orrery::data
