// Writing safetensors files and sharded Hugging Face checkpoints. Tensors are streamed: each source
// hands over its bytes in pieces of any size when its turn comes, so a model is never in memory
// twice. A file appears under its name only when it is complete and synced; an error leaves no
// temporary file behind. Where the folder has an open manifest (orchestrator/base/manifest.h) the
// checksums go into it. One call, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/model/safetensors.h"

namespace orrery::model {

// Takes the next bytes of a tensor.
using ByteSink = std::function<absl::Status(std::span<const std::byte>)>;

struct TensorSource {
  std::string name;
  FileDtype dtype = FileDtype::kF32;
  std::vector<int64_t> shape;
  // Gives all bytes of the tensor to the sink, in order; an error of the sink is to be returned.
  std::function<absl::Status(const ByteSink& sink)> write;
};

// The source of bytes that already lie in memory; they must stay there until the write is done.
TensorSource FromBytes(std::string name, FileDtype dtype, std::vector<int64_t> shape,
                       std::span<const std::byte> data);

struct SafetensorsWriteOptions {
  // A tensor larger than this gets a shard of its own.
  int64_t max_shard_bytes = 5'000'000'000;
  // transformers wants to see "format": "pt".
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

// One file, atomically. Data begin at a multiple of 64 bytes; within the file the tensors lie in
// order of falling element size, so that each is aligned to its element.
absl::Status WriteSafetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata = {
                                  {"format", "pt"}});

// model.safetensors, or model-0000i-of-0000n.safetensors and then the index, into `folder` (made
// where missing). Refused where the folder already holds a checkpoint that the new files would not
// replace entirely.
absl::Status WriteCheckpoint(const std::string& folder, std::span<const TensorSource> tensors,
                             const SafetensorsWriteOptions& options = {});

}  // namespace orrery::model
