// The orrery binary: reads the command line, runs a command and turns how it ended into the exit
// code.
//   0 done   1 failed   2 usage or configuration   130 interrupted, with a checkpoint written
#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <new>
#include <optional>

#include "orchestrator/base/status.h"
#include "orchestrator/commands/bench.h"
#include "orchestrator/commands/bench_shapes.h"
#include "orchestrator/commands/commands.h"
#include "orchestrator/commands/sandbox_host.h"
#include "orchestrator/commands/sandbox_images.h"
#include "orchestrator/commands/sandbox_run.h"

namespace orrery {
namespace {

using commands::Ending;

constexpr int kFailedCode = 1, kUsageCode = 2, kInterruptedCode = 130;

bool IsUsersMistake(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

int ExitCode(const absl::StatusOr<Ending>& ending) {
  if (ending.ok()) return *ending == Ending::kDone ? 0 : kInterruptedCode;
  std::fflush(stdout);
  std::fprintf(stderr, "orrery: %s\n", StatusText(ending.status()).c_str());
  return IsUsersMistake(ending.status()) ? kUsageCode : kFailedCode;
}

absl::StatusOr<Ending> Done(const absl::Status& status) {
  if (!status.ok()) return status;
  return Ending::kDone;
}

// Holds what the options write into, and the command that was chosen.
struct CommandLine {
  commands::RunArguments run;
  commands::PlanArguments plan;
  commands::BenchArguments bench;
  commands::ShapeBenchArguments shape_bench;
  std::string path, folder, model, checkpoint, html, svg, dtype = "auto", tokenizer, finish;
  std::optional<std::string> text;
  std::vector<std::string> paths, metrics;
  bool explain = false, decode = false, rollout = false;
  int64_t vocab_size = 512, step = 0;
  run::SampleFilter filter;
  std::function<absl::StatusOr<Ending>()> chosen;
};

CLI::App* Add(CLI::App& app, CommandLine& line, const char* name, const char* text,
              std::function<absl::StatusOr<Ending>()> command) {
  CLI::App* sub = app.add_subcommand(name, text);
  sub->callback([&line, command = std::move(command)] { line.chosen = command; });
  return sub;
}

void AddExperiment(CLI::App* sub, CommandLine& line, bool required = true) {
  sub->add_option("FILE", line.run.file, "the experiment, a YAML file")->required(required);
  sub->add_option("--set", line.run.overrides, "KEY=VALUE in place of the file's value")
      ->type_size(1)
      ->allow_extra_args(false);
}

void AddTraining(CLI::App& app, CommandLine& line) {
  AddExperiment(Add(app, line, "run", "train with reinforcement learning",
                    [&] { return commands::Run(line.run); }),
                line);
  AddExperiment(Add(app, line, "sft", "train on prompts and solutions",
                    [&] { return commands::Sft(line.run); }),
                line);
  Add(app, line, "resume", "continue a run from its last checkpoint",
      [&] { return commands::Resume(line.path); })
      ->add_option("DIR", line.path, "the run directory")
      ->required();
  CLI::App* eval = Add(app, line, "eval", "evaluate a model on an experiment's evals", [&] {
    return Done(commands::Eval({line.run, line.checkpoint, line.folder}));
  });
  AddExperiment(eval, line);
  eval->add_option("--checkpoint", line.checkpoint, "a model folder in place of model.path");
  eval->add_option("--samples", line.folder, "write every sample to NAME.jsonl.zst in this folder");
}

// A number above 0 and a unit, as bytes.
CLI::Validator SizeInBytes() {
  const auto change = [](std::string& text) -> std::string {
    std::string bytes = text;
    bool above_zero = false;
    try {
      const std::string error = CLI::AsSizeValue(/*kb_is_1000=*/true)(bytes);
      above_zero = error.empty() && text.find('-') == std::string::npos && bytes != "0";
    } catch (const CLI::ValidationError&) {  // said below, shorter
    }
    if (!above_zero) return fmt::format("'{}' is no size; one is 80GB, 75GiB or 80000000000", text);
    text = bytes;
    return "";
  };
  return CLI::Validator(change, "SIZE");
}

void AddPlan(CLI::App& app, CommandLine& line) {
  CLI::App* plan = Add(app, line, "plan", "the memory an experiment takes, before it runs", [&] {
    line.plan.run = line.run;
    return Done(commands::Plan(line.plan));
  });
  AddExperiment(plan, line);
  plan->add_flag("--sft", line.plan.supervised, "as `orrery sft` would run it");
  plan->add_option("--gpu", line.plan.gpu, "h200, b200 or rubin in place of the GPU at hand");
  plan->add_option("--device-memory", line.plan.device_memory,
                   "memory of the GPU in bytes, or with a unit (80GB, 80GiB)")
      ->transform(SizeInBytes());
}

void AddReading(CLI::App& app, CommandLine& line) {
  CLI::App* plot = Add(app, line, "plot", "curves of one or several runs", [&] {
    return Done(commands::Plot(line.paths, line.metrics, line.html, line.svg));
  });
  plot->add_option("DIR", line.paths, "run directories")->required();
  plot->add_option("--metric", line.metrics, "names of metrics");
  CLI::Option* html = plot->add_option("--html", line.html, "write a page to this file instead");
  plot->add_option("--svg", line.svg, "draw a picture to this file instead")->excludes(html);
  CLI::App* inspect =
      Add(app, line, "inspect", "recorded samples", [&]() -> absl::StatusOr<Ending> {
        if (!line.finish.empty()) {
          ASSIGN_OR_RETURN(line.filter.finish_reason, run::ParseFinishReason(line.finish));
        }
        return Done(commands::Inspect(line.path, line.filter));
      });
  inspect->add_option("DIR", line.path, "a run directory or a samples file")->required();
  inspect->add_option("--step", line.filter.step, "which step; the last one where not given");
  inspect->add_option("--eval", line.filter.eval, "of the evaluation of this name (evals)");
  inspect->add_option("--min-reward", line.filter.min_reward,
                      "only episodes with this score or more");
  inspect->add_option("--max-reward", line.filter.max_reward,
                      "only episodes with this score or less");
  inspect->add_option("--finish", line.finish, "stop, length, aborted or rejected");
  inspect->add_option("--group", line.filter.group_id, "only this group");
  inspect->add_option("--text", line.filter.text, "only episodes with this text");
  inspect->add_option("--limit", line.filter.limit, "at most so many; 0: all");
  inspect->add_flag("--top-logprobs", line.filter.top_logprobs,
                    "the most likely tokens at every place (rollout.top_logprobs)");
  CLI::App* replay = Add(app, line, "replay", "a recorded step again, compared bit for bit", [&] {
    return Done(commands::Replay(line.path, line.step, line.rollout));
  });
  replay->add_option("DIR", line.path, "the run directory")->required();
  replay->add_option("--step", line.step, "which step")->required();
  replay->add_flag("--rollout", line.rollout, "sample it again instead of training it again");
  CLI::App* score = Add(app, line, "score", "grade recorded samples again",
                        [&] { return Done(commands::Score(line.path, line.run)); });
  score->add_option("SAMPLES", line.path, "a run directory or a samples file")->required();
  AddExperiment(score, line);
}

void AddTools(CLI::App& app, CommandLine& line) {
  CLI::App* config = Add(app, line, "config", "the resolved experiment, or every key explained",
                         [&] { return Done(commands::PrintConfig(line.run, line.explain)); });
  AddExperiment(config, line, /*required=*/false);
  config->add_flag("--explain", line.explain, "every key, its default, unit and meaning; no FILE");
  CLI::App* tokenize = Add(app, line, "tokenize", "text to token ids", [&] {
    return Done(commands::Tokenize(line.model, line.text, line.decode));
  });
  tokenize->add_option("MODEL", line.model, "a model folder or hf:ORG/NAME")->required();
  tokenize->add_option_function<std::string>(
      "TEXT", [&line](const std::string& text) { line.text = text; },
      "standard input where not given");
  tokenize->add_flag("--decode", line.decode, "ids to text");
  CLI::App* train =
      Add(app, line, "train-tokenizer", "a small byte-level BPE from an experiment's data",
          [&] { return Done(commands::TrainTokenizer(line.run, line.vocab_size, line.folder)); });
  AddExperiment(train, line);
  train->add_option("--vocab-size", line.vocab_size, "entries, special tokens included");
  train->add_option("--out", line.folder, "folder for tokenizer.json")->required();
  CLI::App* import = Add(app, line, "import", "a GGUF or llama2.c file as a model folder", [&] {
    return Done(commands::Import(line.path, line.folder, line.dtype, line.tokenizer));
  });
  import->add_option("FILE", line.path, "the file")->required();
  import->add_option("DIR", line.folder, "the folder to write")->required();
  import->add_option("--dtype", line.dtype, "auto, float32 or bfloat16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}));
  import->add_option("--tokenizer", line.tokenizer, "tokenizer file of a llama2.c model");
  Add(app, line, "doctor", "what this machine has", [] { return Done(commands::Doctor()); });
}

void AddSandbox(CLI::App& app, CommandLine& line) {
  CLI::App* sandbox = app.add_subcommand("sandbox", "isolated places for programs of a model");
  sandbox->require_subcommand(1);
  commands::AddSandboxImageCommands(sandbox, &line.chosen);
  commands::AddSandboxRunCommands(sandbox, &line.chosen);
  commands::AddSandboxHostCommand(&app, &line.chosen);
}

// The engine on a GPU with random weights of a public model's shape.
void AddShapeBenches(CLI::App* bench, CommandLine& line) {
  commands::ShapeBenchArguments& a = line.shape_bench;
  const auto add = [&](const char* name, const char* text,
                       absl::Status (*measure)(const commands::ShapeBenchArguments&)) {
    CLI::App* sub = Add(*bench, line, name, text, [&a, measure] { return Done(measure(a)); });
    sub->add_option("--shape", a.shape, "a public model, as qwen3-30b-a3b");
    sub->add_flag("--exact", a.exact, "exact numerics in place of fast ones");
    return sub;
  };
  const auto add_prompts = [&](CLI::App* sub) {
    sub->add_option("--prompts", a.prompts, "how many");
    sub->add_option("--prompt-tokens", a.prompt_tokens, "of each prompt");
    sub->add_option("--max-running", a.max_running, "sequences at once");
    sub->add_option("--chunk-tokens", a.prefill_chunk_tokens, "prompt tokens a step");
    sub->add_flag("--float8-kv", a.float8_kv, "keys and values in eight bits");
  };
  CLI::App* decode =
      add("decode", "GPU: tokens a second by batch, against the roof", commands::BenchDecode);
  decode->add_option("--batch", a.batches, "sequences, several with commas")->delimiter(',');
  decode->add_option("--context", a.context, "mean over the steps");
  decode->add_option("--steps", a.steps, "that are measured");
  decode->add_flag("--float8-kv", a.float8_kv, "keys and values in eight bits");
  CLI::App* prefill = add("prefill", "GPU: prompts alone", commands::BenchPrefill);
  add_prompts(prefill);
  prefill->add_option("--repeat", a.prefills, "times, each with new prompts");
  CLI::App* phase =
      add("phase", "GPU: a rollout phase with responses of given lengths", commands::BenchPhase);
  add_prompts(phase);
  phase->add_option("--repeat", a.phases, "times, each with new prompts");
  phase->add_option("--samples", a.samples, "responses a prompt");
  phase->add_option("--lengths", a.lengths, "a number, or a file with one a line");
  phase->add_option("--kv-tokens", a.kv_tokens, "of the KV cache; 0: what there is room for");
  phase->add_option("--swap-tokens", a.swap_tokens,
                    "of pinned host memory for preempted responses; 0: they are recomputed");
  CLI::App* train =
      add("train", "GPU: a training step, against the matmul ceiling", commands::BenchTrain);
  train->add_option("--layers", a.layers, "of the shape's; 0: all");
  train->add_option("--micro-batch-tokens", a.micro_batch_tokens, "of each micro-batch");
  train->add_option("--sequence-tokens", a.sequence_tokens, "of each sequence");
  train->add_option("--micro-batches", a.micro_batches, "a step");
  train->add_flag("--recompute", a.recompute, "of every block in its backward");
}

void AddBench(CLI::App& app, CommandLine& line) {
  CLI::App* bench = app.add_subcommand("bench", "how fast an experiment runs here");
  bench->require_subcommand(1);
  const auto add = [&](const char* name, const char* text, commands::BenchKind kind) {
    CLI::App* sub = Add(*bench, line, name, text, [&line, kind] {
      line.bench.run = line.run;
      return Done(commands::Bench(kind, line.bench));
    });
    AddExperiment(sub, line);
    sub->add_option("--repeat", line.bench.repeat, "measured runs, after one to warm up");
    sub->add_flag("--json", line.bench.json, "one line of JSON");
  };
  add("rollout", "sampling: tokens a second", commands::BenchKind::kRollout);
  add("step", "a step of training, by its parts", commands::BenchKind::kStep);
  AddShapeBenches(bench, line);
}

int Main(int argc, char** argv) {
  CLI::App app{"Orrery trains language models with reinforcement learning.", "orrery"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "orrery 0.1.0");
  CommandLine line;
  AddTraining(app, line);
  AddPlan(app, line);
  AddReading(app, line);
  AddTools(app, line);
  AddSandbox(app, line);
  AddBench(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) {
      std::fprintf(stderr, "orrery: there is no command '%s'; `orrery --help` names them\n",
                   argv[1]);
      return kUsageCode;
    }
    const int code = error.get_exit_code();
    if (code == 0) return app.exit(error);  // help and version
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    const std::string command = chosen.empty() ? "" : " " + chosen.front()->get_name();
    std::fprintf(stderr, "orrery%s: %s; `orrery%s --help` says more\n", command.c_str(),
                 error.what(), command.c_str());
    return kUsageCode;
  }
  try {
    return ExitCode(line.chosen());
  } catch (const std::bad_alloc&) {
    return ExitCode(
        Exhausted("the machine has no more memory for this; use a smaller model, "
                  "rollout.max_running or trainer.micro_batch_tokens"));
  }
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) { return orrery::Main(argc, argv); }
