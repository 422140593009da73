// The commands that read and print: config, eval, plot, inspect, score, tokenize, import.
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>

#include "configs/yaml.h"
#include "orchestrator/base/file.h"
#include "orchestrator/base/hash.h"
#include "orchestrator/base/status.h"
#include "orchestrator/base/utf8.h"
#include "orchestrator/commands/commands.h"
#include "orchestrator/commands/session.h"
#include "orchestrator/data/open_dataset.h"
#include "orchestrator/run/plot.h"
#include "orchestrator/run/report.h"
#include "orchestrator/run/run_directory.h"
#include "orchestrator/run/samples.h"
#include "rewards/grader.h"
#include "rewards/rubric.h"
#include "rollout/text/bpe_trainer.h"
#include "rollout/text/llama2c_tokenizer.h"
#include "trainer/model/import_gguf.h"
#include "trainer/model/import_llama2c.h"

namespace orrery::commands {
namespace {

void PrintEval(const std::string& name, const EvalResult& r) {
  std::printf("%s  accuracy %.4f  95%% [%.4f, %.4f]  prompts %lld  truncated %.4f  length %.1f\n",
              name.c_str(), r.accuracy, r.low, r.high, static_cast<long long>(r.prompts),
              r.truncated_ratio, r.response_len);
  for (const auto& [k, value] : r.pass_at_k) {
    if (k > 1) std::printf("%s  pass@%lld %.4f\n", name.c_str(), static_cast<long long>(k), value);
  }
  if (r.failed > 0) {
    std::printf("%s  %lld episodes failed and count nowhere\n", name.c_str(),
                static_cast<long long>(r.failed));
  }
}

// The files that `score` reads: one, or all steps of a run.
absl::StatusOr<std::vector<std::string>> SampleFiles(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return std::vector<std::string>{path};
  if (!run::HoldsRun(path)) {
    return NotFound("{} holds no run; name the folder of one, or a samples file (.jsonl.zst)",
                    path);
  }
  const absl::StatusOr<std::vector<int64_t>> steps = run::SampleSteps(path);
  if (!steps.ok() && !absl::IsNotFound(steps.status())) return steps.status();
  if (!steps.ok() || steps->empty()) {
    return NotFound(
        "{}: the run has no samples: none of its steps ended, or output.samples is false", path);
  }
  std::vector<std::string> files;
  for (const int64_t step : *steps) files.push_back(run::RunPaths(path).samples_of(step));
  return files;
}

// Ids as people write lists of them: with spaces, commas or brackets between them.
absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view text, int32_t vocab_size) {
  constexpr std::string_view kBetween = " \t\r\n,[]";
  std::vector<int32_t> ids;
  for (size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != std::string_view::npos;) {
    const std::string_view word = text.substr(at, text.find_first_of(kBetween, at) - at);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0 || id >= vocab_size) {
      return InvalidInput("'{}' is none of the ids from 0 to {}", ShortenUtf8(word, 60),
                          vocab_size - 1);
    }
    ids.push_back(id);
    at += word.size();
  }
  return ids;
}

}  // namespace

absl::Status PrintConfig(const RunArguments& arguments, bool explain) {
  if (explain) {
    if (!arguments.file.empty() || !arguments.overrides.empty()) {
      return InvalidInput(
          "config: --explain prints every key with its default, of no file: leave out {}, or "
          "--explain for the values of an experiment",
          arguments.file.empty() ? "--set" : arguments.file);
    }
    std::fputs(configs::ExplainExperiment().c_str(), stdout);
    return absl::OkStatus();
  }
  if (arguments.file.empty()) return InvalidInput("config: give an experiment file, or --explain");
  ASSIGN_OR_RETURN(const configs::Experiment experiment,
                   configs::LoadExperiment(arguments.file, arguments.overrides));
  std::fputs(configs::PrintExperiment(experiment).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Eval(const EvalArguments& arguments) {
  ASSIGN_OR_RETURN(configs::Experiment experiment,
                   configs::LoadExperiment(arguments.run.file, arguments.run.overrides));
  if (!arguments.checkpoint.empty()) {
    experiment.model.path = arguments.checkpoint;
    experiment.places.by_key["model.path"] = "--checkpoint " + arguments.checkpoint;
    experiment.model.initialize = "checkpoint";
  }
  if (experiment.evals.empty()) {
    return InvalidInput("{}: has no evals to run: add one under \"evals\"", arguments.run.file);
  }
  SessionOptions options;
  options.for_training = false;
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, MakeSession(experiment, options));
  if (!arguments.samples.empty()) RETURN_IF_ERROR(MakeFolders(arguments.samples));
  for (const EvalTask& task : session->evals) {
    run::SamplesWriter samples(
        fmt::format("{}/{}.jsonl.zst", arguments.samples, run::SafeFileName(task.name)), /*step=*/0,
        session->Pieces());
    EvalRecord record;
    if (!arguments.samples.empty()) {
      record = [&](const std::vector<EpisodeGroup>& groups) {
        samples.Add(groups);
        return absl::OkStatus();
      };
    }
    ASSIGN_OR_RETURN(const EvalResult result, Evaluate(task, record));
    if (record) RETURN_IF_ERROR(samples.Finish());
    PrintEval(task.name, result);
  }
  return absl::OkStatus();
}

absl::Status Plot(const std::vector<std::string>& directories,
                  const std::vector<std::string>& metrics, const std::string& html,
                  const std::string& svg) {
  if (!html.empty()) {
    RETURN_IF_ERROR(run::WriteReport(directories, html));
    std::printf("%s\n", html.c_str());
    return absl::OkStatus();
  }
  run::PlotOptions options;
  options.metrics = metrics;
  if (!svg.empty()) {
    RETURN_IF_ERROR(run::WriteSvg(directories, options, svg));
    std::printf("%s\n", svg.c_str());
    return absl::OkStatus();
  }
  return run::PlotRuns(directories, options, stdout);
}

absl::Status Inspect(const std::string& path, const run::SampleFilter& filter) {
  return run::PrintSamples(path, filter, run::TraitsOf(stdout), stdout).status();
}

absl::Status Score(const std::string& path, const RunArguments& arguments) {
  ASSIGN_OR_RETURN(const configs::Experiment experiment,
                   configs::LoadExperiment(arguments.file, arguments.overrides));
  std::vector<rewards::RewardSpec> specs;
  for (const configs::RewardConfig& r : experiment.rewards) {
    specs.push_back({r.name, r.weight, r.parameters});
  }
  ASSIGN_OR_RETURN(const rewards::TruncationPolicy truncation,
                   rewards::ParseTruncationPolicy(experiment.algorithm.truncated));
  ASSIGN_OR_RETURN(const std::unique_ptr<rewards::Rubric> rubric,
                   rewards::Rubric::Create(specs, truncation));
  ASSIGN_OR_RETURN(const std::vector<std::string> files, SampleFiles(path));
  for (const std::string& file : files) {
    int64_t scored = 0, failed = 0, changed = 0;
    double sum = 0;
    RETURN_IF_ERROR(run::ForEachEpisode(file, [&](run::RecordedEpisode recorded) {
      if (recorded.episode.status == EpisodeStatus::kAborted) return absl::OkStatus();
      Episode again = recorded.episode;
      again.status = EpisodeStatus::kRunning;
      rewards::GradeEpisode(*rubric, recorded.prompt, &again);
      if (again.status != EpisodeStatus::kScored) {
        ++failed;
        return absl::OkStatus();
      }
      ++scored;
      sum += again.outcome.score;
      changed += again.outcome.score != recorded.episode.outcome.score ? 1 : 0;
      return absl::OkStatus();
    }));
    std::printf("%s  mean %.4f  scored %lld  failed %lld  changed %lld\n", file.c_str(),
                scored > 0 ? sum / static_cast<double>(scored) : 0.0,
                static_cast<long long>(scored), static_cast<long long>(failed),
                static_cast<long long>(changed));
  }
  return absl::OkStatus();
}

absl::Status Tokenize(const std::string& model, const std::optional<std::string>& text,
                      bool decode) {
  ASSIGN_OR_RETURN(const std::string folder, ResolveModelSource(model));
  ASSIGN_OR_RETURN(const auto tokenizer, rollout::Tokenizer::Load(folder));
  std::string input = text.value_or("");
  if (!text) {
    input.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  if (decode) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(input, tokenizer->vocab_size()));
    std::printf("%s\n", tokenizer->Decode(ids).c_str());
    return absl::OkStatus();
  }
  for (const int32_t id : tokenizer->Encode(input)) {
    std::printf("%6d  %s\n", id, std::string(tokenizer->TokenText(id)).c_str());
  }
  return absl::OkStatus();
}

absl::Status TrainTokenizer(const RunArguments& arguments, int64_t vocab_size,
                            const std::string& folder) {
  constexpr int64_t kRows = 20000;
  ASSIGN_OR_RETURN(const configs::Experiment e,
                   configs::LoadExperiment(arguments.file, arguments.overrides));
  ASSIGN_OR_RETURN(const auto dataset,
                   data::OpenDataset(e.data, e.story_math, static_cast<uint64_t>(e.run.seed),
                                     ResolveDataSource));
  std::vector<std::string> texts;
  for (int64_t i = 0; i < std::min(kRows, dataset->size()); ++i) {
    const Prompt row = dataset->Row(i);
    texts.push_back(row.text);
    for (const Message& message : row.messages) texts.push_back(message.content);
    texts.push_back(row.solution);
    for (const Message& message : row.solution_messages) texts.push_back(message.content);
  }
  const std::vector<std::string> specials = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  ASSIGN_OR_RETURN(const std::string json,
                   rollout::TrainByteLevelBpe(texts, static_cast<int32_t>(vocab_size), specials));
  RETURN_IF_ERROR(MakeFolders(folder));
  RETURN_IF_ERROR(WriteFileAtomically(folder + "/tokenizer.json", json));
  std::printf("%s/tokenizer.json\n", folder.c_str());
  return absl::OkStatus();
}

absl::Status Import(const std::string& file, const std::string& folder, const std::string& dtype,
                    const std::string& tokenizer) {
  if (file.ends_with(".gguf")) {
    model::ImportOptions options;
    if (dtype == "float32") options.dtype = model::ImportOptions::Dtype::kFloat32;
    if (dtype == "bfloat16") options.dtype = model::ImportOptions::Dtype::kBFloat16;
    return model::ImportGguf(file, folder, options);
  }
  if (file.ends_with(".bin")) {
    if (tokenizer.empty()) {
      return InvalidInput("{}: a llama2.c model needs --tokenizer with its tokenizer file", file);
    }
    ASSIGN_OR_RETURN(const std::string bytes, ReadFile(tokenizer));
    absl::StatusOr<std::string> json = rollout::Llama2cTokenizerJson(bytes);
    if (!json.ok()) return Annotate(json.status(), tokenizer);
    return model::ImportLlama2c(file, *json, folder);
  }
  return InvalidInput(
      "{}: import reads .gguf files and llama2.c .bin files; Hugging Face folders need "
      "no import",
      file);
}

}  // namespace orrery::commands
