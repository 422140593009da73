// The frames of control.h.
#pragma once

#include <string>
#include <vector>

#include "sandbox/protocol/messages.h"

namespace orrery::sandbox {

enum class ControlType : uint16_t { kList = 64, kExec, kKill, kRows, kResult, kOk, kError };

struct ControlRequest {
  std::string id;
  std::vector<std::string> argv, env;
  std::string folder, user;
  bool terminal = false, separate = false;
  int64_t timeout_ms = 0;
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(id), visit(argv), visit(env), visit(folder), visit(user), visit(terminal);
    visit(separate), visit(timeout_ms);
  }
};

struct ControlRow {
  std::string id, image;
  int64_t owner_pid = 0, age_ms = 0, commands = 0;
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(id), visit(image), visit(owner_pid), visit(age_ms), visit(commands);
  }
};

struct ControlRows {
  std::vector<std::string> rows;  // each an encoded ControlRow
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(rows);
  }
};

struct ControlResult {
  uint8_t ending = 0;
  int32_t code = 0;
  std::string why;
  uint8_t flags = 0;  // 1 out of memory, 2 disk full, 4 process limit
  template <typename Visitor>
  void Fields(Visitor visit) {
    visit(ending), visit(code), visit(why), visit(flags);
  }
};

}  // namespace orrery::sandbox
