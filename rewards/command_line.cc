#include "rewards/command_line.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "orchestrator/base/status.h"
#include "rewards/text.h"

namespace orrery::rewards {
namespace {

bool IsExecutableFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitCommand(std::string_view command) {
  std::vector<std::string> words;
  std::optional<std::string> word;
  char quote = 0;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == '\\' && quote != '\'' && i + 1 < command.size()) {
      word = word.value_or("") + command[++i];
    } else if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        *word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      word = word.value_or("");  // '' is an empty word
    } else if (!IsSpace(c)) {
      word = word.value_or("") + c;
    } else if (word) {
      words.push_back(*std::move(word));
      word.reset();
    }
  }
  if (quote != 0) return InvalidInput("command '{}': the quote {} is not closed", command, quote);
  if (word) words.push_back(*std::move(word));
  if (words.empty()) return InvalidInput("command '{}' is empty", command);
  return words;
}

absl::StatusOr<std::string> FindExecutable(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    if (IsExecutableFile(program)) return program;
    return NotFound("'{}' is not an executable file", program);
  }
  const char* path = std::getenv("PATH");
  for (const std::string_view folder : Split(path ? path : "/usr/bin:/bin", ":")) {
    std::string candidate = folder.empty() ? "." : std::string(folder);
    candidate.append("/").append(program);
    if (IsExecutableFile(candidate)) return candidate;
  }
  return NotFound("'{}' is not in PATH", program);
}

}  // namespace orrery::rewards
