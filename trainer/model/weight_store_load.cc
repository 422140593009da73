// WeightStore::LoadCheckpoint. Tensors are cut into pieces that threads take in turn, so that a
// disk is read by all of them and a file's pages are touched once, from the first to the last.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/thread_pool.h"
#include "orchestrator/base/check.h"
#include "orchestrator/base/status.h"
#include "trainer/model/safetensors.h"
#include "trainer/model/weight_store.h"

namespace orrery::model {
namespace {

using kernels::DType;

constexpr int64_t kPieceElements = int64_t{1} << 20;

// Elements [first, first + count) of a tensor, and where they go in the flat buffer.
struct Piece {
  const CheckpointTensor* tensor = nullptr;
  FileTensor values;
  int64_t first = 0, to = 0;
};

absl::Status CheckShape(const FileTensor& found, const CheckpointTensor& wanted) {
  const std::vector<int64_t> shape = wanted.is_vector
                                         ? std::vector<int64_t>{wanted.cols}
                                         : std::vector<int64_t>{wanted.rows, wanted.cols};
  if (found.shape == shape) return absl::OkStatus();
  return InvalidInput("{}: shape is {}, config.json makes it {}", wanted.name,
                      ShapeText(found.shape), ShapeText(shape));
}

absl::Status NotFinite(const Piece& piece, int64_t index, float value) {
  return InvalidInput("element {} is {}: the checkpoint is damaged or its training diverged",
                      piece.first + index, value);
}

void AddPieces(const CheckpointTensor& wanted, const FileTensor& found, int64_t to,
               std::vector<Piece>* pieces) {
  const int64_t size = static_cast<int64_t>(FileDtypeSize(found.dtype));
  for (int64_t first = 0; first < found.num_elements(); first += kPieceElements) {
    const int64_t count = std::min(kPieceElements, found.num_elements() - first);
    FileTensor part = {found.dtype, {count}, found.data.subspan(first * size, count * size)};
    pieces->push_back({&wanted, std::move(part), first, to + first});
  }
}

// bfloat16 as it is: its exponent tells what is not finite.
absl::Status CopyBFloat16(const Piece& piece, uint16_t* to) {
  const int64_t n = piece.values.num_elements();
  std::memcpy(to, piece.values.data.data(), static_cast<size_t>(2 * n));
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= (to[i] & 0x7f80) != 0x7f80;
  if (finite) return absl::OkStatus();
  const int64_t i =
      std::find_if(to, to + n, [](uint16_t x) { return (x & 0x7f80) == 0x7f80; }) - to;
  return NotFinite(piece, i, kernels::FromBFloat16(to[i]));
}

absl::Status CheckFinite(const Piece& piece, std::span<const float> values) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  return bad == values.end() ? absl::OkStatus() : NotFinite(piece, bad - values.begin(), *bad);
}

absl::Status Copy(const Piece& piece, DType dtype, std::byte* flat) {
  if (dtype == DType::kBFloat16 && piece.values.dtype == FileDtype::kBF16) {
    return CopyBFloat16(piece, reinterpret_cast<uint16_t*>(flat) + piece.to);
  }
  const size_t n = static_cast<size_t>(piece.values.num_elements());
  if (dtype == DType::kFloat32) {
    const std::span<float> to(reinterpret_cast<float*>(flat) + piece.to, n);
    RETURN_IF_ERROR(ToFloat32(piece.values, to));
    return CheckFinite(piece, to);
  }
  std::vector<float> values(n);
  RETURN_IF_ERROR(ToFloat32(piece.values, values));
  RETURN_IF_ERROR(CheckFinite(piece, values));
  uint16_t* to = reinterpret_cast<uint16_t*>(flat) + piece.to;
  for (size_t i = 0; i < n; ++i) to[i] = kernels::ToBFloat16(values[i]);
  return absl::OkStatus();
}

}  // namespace

absl::Status WeightStore::LoadCheckpoint(const std::string& folder) {
  CHECK(in_update_);
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(folder));
  std::vector<Piece> pieces;
  for (const CheckpointTensor& wanted : layout_.tensors) {
    ASSIGN_OR_RETURN(const FileTensor found, checkpoint->Get(wanted.name));
    if (absl::Status s = CheckShape(found, wanted); !s.ok()) return Annotate(s, folder);
    const Param& p = layout_.params[wanted.param];
    const int64_t start = wanted.is_vector ? wanted.row : wanted.row * p.cols;
    AddPieces(wanted, found, p.offset + start, &pieces);
  }
  std::vector<absl::Status> statuses(pieces.size());
  kernels::ParallelFor(static_cast<int64_t>(pieces.size()),
                       [&](int64_t i) { statuses[i] = Copy(pieces[i], dtype_, flat_); });
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!statuses[i].ok()) return Annotate(statuses[i], folder + ": " + pieces[i].tensor->name);
  }
  return absl::OkStatus();
}

}  // namespace orrery::model
