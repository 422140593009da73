// The sample browser: a list with filters, and one sample with its segments by author; policy
// tokens are shaded by how unlikely they were, and tell their log-prob under the pointer.
const chosenStep = () => data.samples[Number(byId("f-step").value)];
let visible = [];
let chosen = 0;

function option(value, text) {
  const element = make("option", "", text);
  element.value = value;
  return element;
}

function fillSteps() {
  const run = Number(byId("f-run").value);
  byId("f-step").replaceChildren();
  let newest = null;
  data.samples.forEach((step, i) => {
    if (step.run !== run) return;
    byId("f-step").append(option(i, step.eval === "" ? String(step.step) : step.eval + " at " + step.step));
    if (newest === null || step.eval === "") newest = i;
  });
  if (newest !== null) byId("f-step").value = newest;
}

function textOf(segment) { return segment.pieces ? segment.pieces.join("") : segment.text; }

function matches(episode) {
  const low = byId("f-min").value, high = byId("f-max").value;
  if ((low !== "" || high !== "") && episode.reward === null) return false;
  if (low !== "" && episode.reward < Number(low)) return false;
  if (high !== "" && episode.reward > Number(high)) return false;
  const finish = byId("f-finish").value;
  if (finish !== "" && episode.finish !== finish) return false;
  const text = byId("f-text").value.toLowerCase();
  return text === "" || episode.segments.some((segment) => textOf(segment).toLowerCase().includes(text));
}

function showList() {
  const step = chosenStep();
  const list = byId("list");
  list.replaceChildren();
  visible = step ? step.episodes.filter(matches) : [];
  visible.forEach((episode, i) => {
    const row = make("div", "row");
    row.append(make("span", "dim", "#" + episode.position), make("b", "", format(episode.reward)),
               make("span", "dim", episode.finish + (episode.status === "scored" ? "" : " · " + episode.status)),
               make("span", "dim", episode.tokens + " tok"));
    row.addEventListener("click", () => choose(i));
    list.append(row);
  });
  const total = step ? step.total : 0;
  byId("f-count").textContent = visible.length + " shown of " + (step ? step.episodes.length : 0) +
    (step && total > step.episodes.length ? " in this page; the step has " + total :
      step && step.more ? " in this page; the file has more" : "") +
    (step && step.problem ? " · " + step.problem : "");
  choose(0);
}

function fact(parent, name, text) {
  if (text === "" || text === null || text === undefined) return;
  const box = make("div");
  box.append(make("b", "", name), make("span", "", String(text)));
  parent.append(box);
}

function words(segment) {
  const box = make("div", "words");
  if (!segment.pieces) {
    box.textContent = segment.text;
    return box;
  }
  segment.pieces.forEach((piece, i) => {
    const span = make("span", "", piece);
    const logprob = segment.logprobs[i];
    span.dataset.token = segment.ids[i];
    span.dataset.logprob = logprob === null ? "" : logprob;
    span.dataset.version = segment.versions[i];
    if (logprob !== null) span.style.background = "rgba(var(--low), " + (0.55 * (1 - Math.exp(logprob))).toFixed(3) + ")";
    box.append(span);
  });
  return box;
}

const kWho = {prompt: "prompt", policy: "policy", tool: "tool", template: "chat template"};

function choose(i) {
  chosen = i;
  const article = byId("sample");
  article.replaceChildren();
  [...byId("list").children].forEach((row, k) => row.classList.toggle("chosen", k === i));
  const episode = visible[i];
  if (!episode) {
    article.append(make("span", "dim", "No sample matches."));
    return;
  }
  const list = byId("list");
  const row = list.children[i];
  // Not scrollIntoView(): that moves the page too.
  if (row.offsetTop < list.scrollTop) list.scrollTop = row.offsetTop;
  if (row.offsetTop + row.offsetHeight > list.scrollTop + list.clientHeight) {
    list.scrollTop = row.offsetTop + row.offsetHeight - list.clientHeight;
  }
  const facts = make("div", "facts");
  fact(facts, "reward", format(episode.reward));
  const evaluated = chosenStep().eval !== "";
  if (!evaluated) fact(facts, "advantage", format(episode.advantage));
  fact(facts, "why", episode.why);
  fact(facts, "answer", episode.answer);
  if (episode.parts.length > 1) fact(facts, "parts", episode.parts.map(([n, v]) => n + " " + format(v)).join(", "));
  fact(facts, "finish", episode.finish);
  fact(facts, "status", episode.status + (episode.trained || evaluated ? "" : ", not trained"));
  fact(facts, "turns", episode.turns > 1 ? episode.turns : "");
  fact(facts, "prompt", episode.prompt);
  fact(facts, "group", episode.group + " · " + episode.index);
  fact(facts, "seed", episode.seed);
  article.append(facts);
  for (const segment of episode.segments) {
    const box = make("div", "segment " + segment.author);
    box.append(make("div", "who", kWho[segment.author] + " · " + segment.tokens + " tokens" +
      (segment.cut ? " · the last " + segment.cut + " bytes are not in this page" : "")), words(segment));
    article.append(box);
  }
}

function showTip(event) {
  const span = event.target.closest ? event.target.closest(".words span") : null;
  const tip = byId("tip");
  tip.hidden = !span;
  if (!span) return;
  const logprob = span.dataset.logprob;
  tip.textContent = JSON.stringify(span.textContent) + "\nid " + span.dataset.token +
    (logprob === "" ? "" : "\nlog-prob " + Number(logprob).toPrecision(5) + "  ·  p " + Number(Math.exp(logprob).toPrecision(3))) +
    "\nweights " + span.dataset.version;
  const box = span.getClientRects()[0] || span.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(box.left, window.innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = (box.bottom + tip.offsetHeight + 10 < window.innerHeight ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + "px";
}

function addSamples() {
  if (data.samples.length === 0) return;
  byId("samples").hidden = false;
  const withSamples = [...new Set(data.samples.map((step) => step.run))];
  withSamples.forEach((run) => byId("f-run").append(option(run, runs[run].name)));
  byId("f-run").parentElement.hidden = withSamples.length < 2;
  const reasons = new Set(data.samples.flatMap((step) => step.episodes.map((episode) => episode.finish)));
  byId("f-finish").append(option("", "any"), ...[...reasons].sort().map((reason) => option(reason, reason)));
  byId("f-run").addEventListener("change", () => { fillSteps(); showList(); });
  for (const id of ["f-step", "f-min", "f-max", "f-finish", "f-text"]) byId(id).addEventListener("input", showList);
  byId("list").addEventListener("keydown", (event) => {
    const move = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (move === 0 || !visible[chosen + move]) return;
    event.preventDefault();
    choose(chosen + move);
  });
  byId("sample").addEventListener("mouseover", showTip);
  byId("sample").addEventListener("mouseleave", () => { byId("tip").hidden = true; });
  fillSteps();
  showList();
}

addSamples();
// What a test looks for: that everything above ran to its end.
document.body.dataset.ready = charts.length + " charts, " + visible.length + " samples";
