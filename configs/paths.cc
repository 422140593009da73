#include "configs/paths.h"

#include <system_error>

#include "orchestrator/base/status.h"

namespace orrery::configs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlanks = " \t\r\n";

bool HasPath(const std::string& source) {
  return !source.empty() && source != "story_math" && !source.starts_with("hf:");
}

std::string Absolute(const fs::path& path) {
  std::error_code error;
  return fs::absolute(path, error).lexically_normal().string();
}

// As a word of a command line.
std::string Quoted(const std::string& path) {
  if (path.find_first_of(" \t\r\n'\"\\") == std::string::npos) return path;
  std::string quoted = "\"";
  for (const char c : path) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string ResolveWord(std::string_view word, bool first, const fs::path& folder) {
  const std::string text(word);
  const bool plain = word.find_first_of("'\"\\") == std::string_view::npos;
  if (!plain || word.front() == '/' || (first && word.find('/') == std::string_view::npos)) {
    return text;
  }
  std::error_code error;
  return fs::is_regular_file(folder / text, error) ? Quoted(Absolute(folder / text)) : text;
}

// The end of the word that begins at `at`: the next blank outside of quotes.
size_t WordEnd(std::string_view command, size_t at) {
  char quote = 0;
  for (; at < command.size(); ++at) {
    const char c = command[at];
    if (c == '\\' && quote != '\'') {
      ++at;
    } else if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (kBlanks.find(c) != std::string_view::npos) {
      break;
    }
  }
  return std::min(at, command.size());
}

}  // namespace

std::string ResolvePath(const std::string& path, const fs::path& folder) {
  std::error_code error;
  if (!HasPath(path) || fs::path(path).is_absolute()) return path;
  if (fs::exists(folder / path, error)) return Absolute(folder / path);
  if (fs::exists(path, error)) return Absolute(path);
  return path;
}

std::string ResolveCommand(std::string_view command, const fs::path& folder) {
  std::string resolved;
  bool first = true;
  for (size_t at = 0; at < command.size();) {
    const size_t begin = std::min(command.find_first_not_of(kBlanks, at), command.size());
    resolved += command.substr(at, begin - at);
    if (begin == command.size()) break;
    const size_t end = WordEnd(command, begin);
    resolved += ResolveWord(command.substr(begin, end - begin), first, folder);
    first = false;
    at = end;
  }
  return resolved;
}

void ResolvePaths(const fs::path& folder, Experiment& experiment) {
  const auto from_file = [&](const std::string& key) {
    const auto place = experiment.places.by_key.find(key);
    return place != experiment.places.by_key.end() && !place->second.starts_with("--set ");
  };
  const auto resolve = [&](const std::string& key, std::string& path) {
    path = ResolvePath(path, from_file(key) ? folder : fs::path("."));
  };
  resolve("model.path", experiment.model.path);
  resolve("data.source", experiment.data.source);
  for (size_t i = 0; i < experiment.evals.size(); ++i) {
    resolve(fmt::format("evals.{}.data.source", i), experiment.evals[i].data.source);
  }
  for (size_t i = 0; i < experiment.rewards.size(); ++i) {
    const auto command = experiment.rewards[i].parameters.find("command");
    if (command == experiment.rewards[i].parameters.end()) continue;
    const std::string key = fmt::format("rewards.{}.parameters.command", i);
    command->second = ResolveCommand(command->second, from_file(key) ? folder : fs::path("."));
  }
}

}  // namespace orrery::configs
