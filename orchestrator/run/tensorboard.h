// TensorBoard event files, written by hand: a few fields of two messages in TFRecord framing.
//
// Record (TensorFlow, core/lib/io/record_writer): length as little-endian uint64, masked CRC32C of
// those 8 bytes, data, masked CRC32C of the data. Mask: rotate right by 15, add 0xa282ead8.
// Event (tensorflow/core/util/event.proto): wall_time = 1 double, step = 2 int64,
// file_version = 3 string, summary = 5 message; Summary.value = 1 repeated: tag = 1 string,
// simple_value = 2 float. TensorBoard shows float32; metrics.jsonl has the exact values.
//
// A process writes one file of its own; TensorBoard reads all files of the folder in the order of
// their names, so each new one sorts after those that are there. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "orchestrator/run/metrics.h"

namespace orrery::run {

// CRC-32C (Castagnoli), and as TFRecord stores it.
uint32_t Crc32c(std::string_view data);
uint32_t MaskedCrc32c(std::string_view data);

std::string ToTfRecord(std::string_view data);
// The first event of every file.
std::string FileVersionEvent(double wall_time);
std::string ScalarsEvent(double wall_time, const StepMetrics& metrics);
// Step of a serialized Event; 0 where it has none (as in protobuf's default).
absl::StatusOr<int64_t> StepOfEvent(std::string_view event);

class TensorBoardSink : public MetricSink {
 public:
  static absl::StatusOr<std::unique_ptr<TensorBoardSink>> Open(const std::string& folder);
  ~TensorBoardSink() override;

  absl::Status Write(const StepMetrics& metrics) override;
  absl::Status Flush() override;
  const std::string& path() const { return path_; }

 private:
  TensorBoardSink(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Append(std::string_view record);

  const std::string path_;
  const int fd_;
  int64_t size_ = 0;  // bytes of whole records
};

// Removes the records of steps after `step`, and what a crash tore, from every file in `folder`.
absl::Status KeepTensorBoardUpTo(const std::string& folder, int64_t step);

}  // namespace orrery::run
