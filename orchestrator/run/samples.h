// samples/step-N.jsonl.zst: every sample of a step, one JSON object an episode, each complete in
// itself (the prompt stands in every line of its group: zstd makes that free, and a line can be
// looked at alone).
//
//   {"step":7,"group_id":12,"index_in_group":0,"group_size":8,
//    "prompt":{"id":..,"messages":[{"role":..,"content":..}],"text":..,"answer":..,"solution":..,
//              "solution_messages":[],"metadata":{..}},
//    "episode_id":..,"seed":..,"status":"scored","score":1,"scoring":"scored","why":..,
//    "parts":{"gsm8k_strict":1},"advantage":0.5,"trained":true,"num_turns":1,"response_text":..,
//    "samples":[{"finish_reason":"stop","segments":[
//       {"author":"policy","text":..,"piece_bytes":[5,1],"token_ids":[..],"logprobs":[..],
//        "versions":[[3,2]]}]}]}
//
// A sample of a model with experts whose routing was recorded (trainer.routing_replay) has
//
//   "routed_experts":{"layers":48,"top_k":8,"id_bytes":1,"prompt_tokens":100,"tokens":299,"ids":".."}
//
// beside "segments": RoutedExperts, base64 of tokens x layers x top_k ids; 4/3 of a byte an id.
//
// and a policy segment whose most likely tokens were recorded (rollout.top_logprobs)
//
//   "top_logprobs":{"n":5,"token_ids":[..],"logprobs":[..],"pieces":[..]}
//
// of n entries a token, most likely first; "pieces" are their texts.
//
// "versions" is run-length coded: [version, number of tokens]. "piece_bytes" cuts the text into the
// pieces of its tokens. A group without episodes is one line without "episode_id".
//
// An evaluation's file, samples/step-N.eval-NAME.jsonl.zst, is alike: group_id is the row of its
// dataset, an episode's id counts from 0 in each evaluation, and there are no advantages.
//
// Reading gives the groups back bit for bit (floats by their shortest form, invalid UTF-8 through
// base64; names of metadata and of reward parts are UTF-8 already); equal groups and texts give
// equal bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/types.h"

namespace orrery::run {

// The text of each token, one piece an id: joined they are the text of the segment. A piece may be
// empty or a part of a character.
using PieceDecoder = std::function<std::vector<std::string>(std::span<const int32_t> token_ids)>;

struct SegmentText {
  std::string text;
  std::vector<int32_t> piece_bytes;     // one a token; they sum to text.size()
  std::vector<std::string> top_pieces;  // of Segment::top_logprobs
};
// [sample][segment], as in Episode::samples.
using EpisodeText = std::vector<std::vector<SegmentText>>;

struct StepSamples {
  int64_t step = 0;
  std::vector<EpisodeGroup> groups;
  std::vector<std::vector<EpisodeText>> texts;  // [group][episode]
};

// The file's content, for whoever wants to compare steps without writing them.
std::string EncodeSamples(int64_t step, const std::vector<EpisodeGroup>& groups,
                          const PieceDecoder& decode);

class LineCompressor;

// A samples file whose groups come bit by bit. Compressed lines are kept in memory until Finish:
// after the death of this process the file is there whole or not at all. A checkpoint syncs it to
// the disk (RunDirectory::CommitCheckpoint); syncing at every step would cost a short step a few
// percent.
class SamplesWriter {
 public:
  SamplesWriter(std::string path, int64_t step, PieceDecoder decode);
  ~SamplesWriter();
  void Add(const std::vector<EpisodeGroup>& groups);
  // Nothing may follow.
  absl::Status Finish();

 private:
  const std::string path_;
  const int64_t step_;
  const PieceDecoder decode_;
  const std::unique_ptr<LineCompressor> lines_;
};

// samples/step-N.jsonl.zst of the run directory.
absl::Status WriteSamples(const std::string& run_directory, int64_t step,
                          const std::vector<EpisodeGroup>& groups, const PieceDecoder& decode);

// Whole file. Errors name the file and the line, and also find groups with episodes missing.
absl::StatusOr<StepSamples> ReadSamples(const std::string& path);

// One line of the file: the group without its other episodes.
struct RecordedEpisode {
  int64_t step = 0;
  uint64_t group_id = 0;
  int64_t group_size = 0;
  Prompt prompt;
  Episode episode;
  EpisodeText text;
};

// Episode after episode, in fixed memory: for files that are too large to hold.
absl::Status ForEachEpisode(const std::string& path,
                            const std::function<absl::Status(RecordedEpisode)>& use);

// Names as the file has them; the reverse is an error for an unknown name.
std::string_view AuthorName(Author author);
std::string_view FinishReasonName(FinishReason reason);
std::string_view StatusName(EpisodeStatus status);
absl::StatusOr<FinishReason> ParseFinishReason(std::string_view name);

}  // namespace orrery::run
