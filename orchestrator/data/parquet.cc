#include "orchestrator/data/parquet.h"

#include "orchestrator/base/status.h"

#ifdef ORRERY_HAVE_PARQUET

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <rapidjson/document.h>

#include <cmath>
#include <exception>
#include <string_view>

namespace orrery::data {
namespace {

using Allocator = rapidjson::Document::AllocatorType;
using rapidjson::Value;

constexpr int kMaxDepth = 32;

absl::Status FromArrow(const arrow::Status& status, const std::string& path) {
  return InvalidInput("{}: {}; the file is broken or no Parquet, get it again", path,
                      status.message());
}

Value Text(std::string_view text, Allocator& allocator) {
  return Value(text.data(), static_cast<rapidjson::SizeType>(text.size()), allocator);
}

// JSON has no infinity and no NaN: they count as missing.
Value Number(double value) { return std::isfinite(value) ? Value(value) : Value(); }

Value Cell(const arrow::Array& array, int64_t i, int depth, Allocator& allocator);

template <typename List>
Value ListCell(const List& list, int64_t i, int depth, Allocator& allocator) {
  Value items(rapidjson::kArrayType);
  const std::shared_ptr<arrow::Array> values = list.values();
  for (int64_t k = 0; k < list.value_length(i); ++k) {
    items.PushBack(Cell(*values, list.value_offset(i) + k, depth + 1, allocator), allocator);
  }
  return items;
}

Value StructCell(const arrow::StructArray& array, int64_t i, int depth, Allocator& allocator) {
  Value object(rapidjson::kObjectType);
  for (int f = 0; f < array.num_fields(); ++f) {
    object.AddMember(Text(array.struct_type()->field(f)->name(), allocator),
                     Cell(*array.field(f), i, depth + 1, allocator), allocator);
  }
  return object;
}

// Dates, decimals and other types as Arrow writes them.
Value OtherCell(const arrow::Array& array, int64_t i, Allocator& allocator) {
  const arrow::Result<std::shared_ptr<arrow::Scalar>> scalar = array.GetScalar(i);
  return scalar.ok() ? Text((*scalar)->ToString(), allocator) : Value();
}

template <typename Array>
const Array& As(const arrow::Array& array) {
  return static_cast<const Array&>(array);
}

Value Cell(const arrow::Array& array, int64_t i, int depth, Allocator& allocator) {
  if (array.IsNull(i) || depth > kMaxDepth) return Value();
  switch (array.type_id()) {
    case arrow::Type::NA:
      return Value();
    case arrow::Type::BOOL:
      return Value(As<arrow::BooleanArray>(array).Value(i));
    case arrow::Type::INT8:
      return Value(static_cast<int64_t>(As<arrow::Int8Array>(array).Value(i)));
    case arrow::Type::INT16:
      return Value(static_cast<int64_t>(As<arrow::Int16Array>(array).Value(i)));
    case arrow::Type::INT32:
      return Value(static_cast<int64_t>(As<arrow::Int32Array>(array).Value(i)));
    case arrow::Type::INT64:
      return Value(static_cast<int64_t>(As<arrow::Int64Array>(array).Value(i)));
    case arrow::Type::UINT8:
      return Value(static_cast<uint64_t>(As<arrow::UInt8Array>(array).Value(i)));
    case arrow::Type::UINT16:
      return Value(static_cast<uint64_t>(As<arrow::UInt16Array>(array).Value(i)));
    case arrow::Type::UINT32:
      return Value(static_cast<uint64_t>(As<arrow::UInt32Array>(array).Value(i)));
    case arrow::Type::UINT64:
      return Value(static_cast<uint64_t>(As<arrow::UInt64Array>(array).Value(i)));
    case arrow::Type::FLOAT:
      return Number(As<arrow::FloatArray>(array).Value(i));
    case arrow::Type::DOUBLE:
      return Number(As<arrow::DoubleArray>(array).Value(i));
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return Text(As<arrow::BinaryArray>(array).GetView(i), allocator);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return Text(As<arrow::LargeBinaryArray>(array).GetView(i), allocator);
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return Text(As<arrow::BinaryViewArray>(array).GetView(i), allocator);
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = As<arrow::DictionaryArray>(array);
      return Cell(*dictionary.dictionary(), dictionary.GetValueIndex(i), depth + 1, allocator);
    }
    case arrow::Type::LIST:
      return ListCell(As<arrow::ListArray>(array), i, depth, allocator);
    case arrow::Type::LARGE_LIST:
      return ListCell(As<arrow::LargeListArray>(array), i, depth, allocator);
    case arrow::Type::FIXED_SIZE_LIST:
      return ListCell(As<arrow::FixedSizeListArray>(array), i, depth, allocator);
    case arrow::Type::STRUCT:
      return StructCell(As<arrow::StructArray>(array), i, depth, allocator);
    default:
      return OtherCell(array, i, allocator);
  }
}

absl::Status AddBatch(const arrow::RecordBatch& batch, const std::string& path,
                      const RowMapper& mapper, int64_t limit, int64_t first_row,
                      std::vector<Prompt>& rows) {
  for (int64_t i = 0; i < batch.num_rows(); ++i) {
    if (limit > 0 && static_cast<int64_t>(rows.size()) >= limit) break;
    rapidjson::Document row(rapidjson::kObjectType);
    for (int c = 0; c < batch.num_columns(); ++c) {
      row.AddMember(Text(batch.column_name(c), row.GetAllocator()),
                    Cell(*batch.column(c), i, 0, row.GetAllocator()), row.GetAllocator());
    }
    absl::StatusOr<Prompt> prompt = mapper.Map(row, static_cast<int64_t>(rows.size()));
    if (!prompt.ok()) {
      return Annotate(prompt.status(), fmt::format("{}: row {}", path, first_row + i + 1));
    }
    rows.push_back(*std::move(prompt));
  }
  return absl::OkStatus();
}

absl::Status AddTable(const arrow::Table& table, const std::string& path, const RowMapper& mapper,
                      int64_t limit, int64_t first_row, std::vector<Prompt>& rows) {
  arrow::TableBatchReader batches(table);
  while (true) {
    std::shared_ptr<arrow::RecordBatch> batch;
    arrow::Status status = batches.ReadNext(&batch);
    if (status.ok() && batch != nullptr) status = batch->ValidateFull();
    if (!status.ok()) return FromArrow(status, path);
    if (batch == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(AddBatch(*batch, path, mapper, limit, first_row, rows));
    first_row += batch->num_rows();
  }
}

absl::Status ReadFileRows(const std::string& path, const RowMapper& mapper, int64_t limit,
                          std::vector<Prompt>& rows) {
  const auto file = arrow::io::ReadableFile::Open(path);
  if (!file.ok()) return NotFound("{}: {}", path, file.status().message());
  auto reader = parquet::arrow::OpenFile(*file, arrow::default_memory_pool());
  if (!reader.ok()) return FromArrow(reader.status(), path);
  int64_t first_row = 0;
  for (int group = 0; group < (*reader)->num_row_groups(); ++group) {
    if (limit > 0 && static_cast<int64_t>(rows.size()) >= limit) break;
    const auto table = (*reader)->ReadRowGroup(group);
    if (!table.ok()) return FromArrow(table.status(), path);
    RETURN_IF_ERROR(AddTable(**table, path, mapper, limit, first_row, rows));
    first_row += (*table)->num_rows();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadParquetRows(const std::string& path, const RowMapper& mapper, int64_t limit,
                             std::vector<Prompt>& rows) {
  try {
    return ReadFileRows(path, mapper, limit, rows);
  } catch (const std::exception& error) {  // parquet throws below its Arrow interface
    return InvalidInput("{}: {}; the file is broken, get it again", path, error.what());
  }
}

}  // namespace orrery::data

#else

namespace orrery::data {

absl::Status ReadParquetRows(const std::string& path, const RowMapper&, int64_t,
                             std::vector<Prompt>&) {
  return InvalidInput(
      "{}: this build has no Arrow and reads no Parquet; run ./orrery setup and "
      "build again, or convert the file to .jsonl",
      path);
}

}  // namespace orrery::data

#endif
