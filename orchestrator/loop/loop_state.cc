#include "orchestrator/loop/loop_state.h"

#include <rapidjson/document.h>

#include "orchestrator/base/file.h"
#include "orchestrator/base/status.h"

namespace orrery {
namespace {

constexpr char kFile[] = "/loop.json";

}  // namespace

absl::Status SaveLoopState(const LoopState& state, const std::string& folder) {
  return WriteFileAtomically(
      folder + kFile,
      fmt::format("{{\"step\": {}, \"data_position\": {}, \"next_episode_id\": {}, "
                  "\"next_group_id\": {}, \"data_fingerprint\": \"{}\", \"threads\": {}, "
                  "\"simd\": \"{}\", \"has_checksums\": true}}\n",
                  state.step, state.data_position, state.next_episode_id, state.next_group_id,
                  state.data_fingerprint, state.threads, state.simd));
}

absl::StatusOr<LoopState> LoadLoopState(const std::string& folder) {
  const std::string path = folder + kFile;
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  rapidjson::Document json;
  json.Parse(text.c_str());
  if (json.HasParseError() || !json.IsObject()) return InvalidInput("{}: not a JSON object", path);
  LoopState state;
  absl::Status status;
  const auto number = [&](const char* key) -> int64_t {
    const auto it = json.FindMember(key);
    if (it == json.MemberEnd() || !it->value.IsInt64() || it->value.GetInt64() < 0) {
      status = InvalidInput("{}: \"{}\" must be a number that is not negative", path, key);
      return 0;
    }
    return it->value.GetInt64();
  };
  state.step = number("step");
  state.data_position = number("data_position");
  state.next_episode_id = static_cast<uint64_t>(number("next_episode_id"));
  state.next_group_id = static_cast<uint64_t>(number("next_group_id"));
  state.threads = number("threads");
  const auto fingerprint = json.FindMember("data_fingerprint");
  if (fingerprint == json.MemberEnd() || !fingerprint->value.IsString()) {
    status = InvalidInput("{}: \"data_fingerprint\" must be text", path);
  } else {
    state.data_fingerprint = fingerprint->value.GetString();
  }
  const auto simd = json.FindMember("simd");
  if (simd != json.MemberEnd() && simd->value.IsString()) state.simd = simd->value.GetString();
  const auto checksums = json.FindMember("has_checksums");
  state.has_checksums =
      checksums != json.MemberEnd() && checksums->value.IsBool() && checksums->value.GetBool();
  RETURN_IF_ERROR(status);
  return state;
}

std::string MachineNote(const LoopState& then, const LoopState& now) {
  std::string note;
  if (then.threads != now.threads) {
    note = fmt::format(
        "the run goes on with {} threads, its checkpoint was written with {}: the same results, at "
        "another speed",
        now.threads, then.threads);
  }
  if (!then.simd.empty() && then.simd != now.simd) {
    if (!note.empty()) note += "\n";
    note += fmt::format(
        "the run goes on with {} kernels, its checkpoint was written with {}: the last bits of the "
        "curve may differ from an uninterrupted run's",
        now.simd, then.simd);
  }
  return note;
}

}  // namespace orrery
