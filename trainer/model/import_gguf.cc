#include "trainer/model/import_gguf.h"

#include <algorithm>
#include <memory>

#include "orchestrator/base/status.h"
#include "trainer/model/import_gguf_parts.h"
#include "trainer/model/staged_folder.h"

namespace orrery::model {
namespace {

FileDtype ChooseDtype(const GgufFile& file, ImportOptions::Dtype wanted) {
  if (wanted == ImportOptions::Dtype::kFloat32) return FileDtype::kF32;
  if (wanted == ImportOptions::Dtype::kBFloat16) return FileDtype::kBF16;
  const bool bfloat16 =
      std::all_of(file.tensors().begin(), file.tensors().end(), [](const GgufTensor& tensor) {
        return tensor.type == GgmlType::kBF16 || tensor.shape.size() == 1;
      });
  return bfloat16 ? FileDtype::kBF16 : FileDtype::kF32;
}

void ReportProgress(std::vector<TensorSource>& sources, const ImportOptions& options) {
  if (!options.progress) return;
  auto done = std::make_shared<size_t>(0);
  for (TensorSource& source : sources) {
    source.write = [write = std::move(source.write), name = source.name, done,
                    total = sources.size(), &options](const ByteSink& sink) {
      options.progress(name, (*done)++, total);
      return write(sink);
    };
  }
}

}  // namespace

absl::Status ImportGguf(const std::string& gguf_path, const std::string& out_folder,
                        const ImportOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(gguf_path));
  const FileDtype dtype = ChooseDtype(*file, options.dtype);
  ASSIGN_OR_RETURN(const ImportedConfig config, ConfigFromGguf(*file));
  ASSIGN_OR_RETURN(const ImportedTokenizer tokenizer, TokenizerFromGguf(*file));
  ASSIGN_OR_RETURN(std::vector<TensorSource> sources, TensorsFromGguf(*file, config, dtype));
  ReportProgress(sources, options);

  ASSIGN_OR_RETURN(const std::unique_ptr<StagedFolder> folder, StagedFolder::Create(out_folder));
  RETURN_IF_ERROR(folder->Write("config.json", ConfigJson(config, dtype)));
  RETURN_IF_ERROR(folder->Write("generation_config.json", GenerationConfigJson(config)));
  RETURN_IF_ERROR(folder->Write("tokenizer.json", tokenizer.tokenizer_json));
  RETURN_IF_ERROR(folder->Write("tokenizer_config.json", tokenizer.tokenizer_config_json));
  RETURN_IF_ERROR(
      WriteCheckpoint(folder->path(), sources, {.max_shard_bytes = options.max_shard_bytes}));
  return folder->Commit();
}

}  // namespace orrery::model
