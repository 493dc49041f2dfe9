#include "node/metrics/status_page.h"

namespace cachalot::node {

// Text of the pool goes into the page as text, never as HTML.
const char* const kStatusPage = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Cachalot</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #1b2733; background: #fff; }
  h1 { font-size: 1.3em; margin: 0; }
  #state { color: #5b6b7a; margin: 0 0 1.2em; }
  #state.wrong { color: #b3261e; font-weight: 600; }
  dl { display: grid; grid-template-columns: 9em 1fr; gap: .35em 1em; margin: 0; }
  dt { color: #5b6b7a; }
  dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
  .bar { height: .6em; background: #e3e9ee; border-radius: .3em; overflow: hidden; margin-top: .4em; max-width: 30em; }
  .bar i { display: block; height: 100%; background: #2f7fb8; }
  .wrong { color: #b3261e; }
  footer { margin-top: 2em; color: #5b6b7a; font-size: .9em; }
  @media (prefers-color-scheme: dark) {
    body { background: #14191e; color: #dde5ec; } .bar { background: #2a343d; } a { color: #7fbdea; }
    .wrong, #state.wrong { color: #ff8a80; }
  }
</style>
</head>
<body>
<h1 id="pool">Cachalot</h1>
<p id="state">…</p>
<dl id="rows"></dl>
<footer><a href="/status">status</a> · <a href="/metrics">metrics</a> · <a href="/version">version</a></footer>
<script>
"use strict";
const SOURCES = [["used_pool_blocks", "pool"], ["used_peer_blocks", "peers"], ["used_storage_blocks", "storage"]];
let before = null, beforeMs = 0;

const number = n => n.toLocaleString("en");
function bytes(n) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit + 1 < units.length) { n /= 1024; ++unit; }
  return (unit && n < 100 ? n.toFixed(1) : Math.round(n)) + " " + units[unit];
}
const percent = (part, all) => all ? (100 * part / all).toFixed(1) + " %" : "–";
const hits = of => {
  const used = SOURCES.reduce((sum, [name]) => sum + of(name), 0);
  return percent(used, of("prompt_blocks")) + " (" +
    SOURCES.map(([name, text]) => text + " " + percent(of(name), of("prompt_blocks"))).join(", ") + ")";
};

function row(name, text, share, isWrong) {
  const key = document.createElement("dt"), value = document.createElement("dd");
  key.textContent = name;
  value.textContent = text;
  if (isWrong) value.className = "wrong";
  if (share !== undefined) {
    const bar = document.createElement("div"), filled = document.createElement("i");
    bar.className = "bar";
    filled.style.width = Math.min(100, 100 * share) + "%";
    bar.append(filled);
    value.append(bar);
  }
  return [key, value];
}

function state(text, isWrong) {
  const line = document.getElementById("state");
  line.textContent = text;
  line.className = isWrong ? "wrong" : "";
}

function show(now, seconds) {
  const geometry = now.geometry, blocks = now.accounting || {}, counters = now.counters || {}, totals = now.totals;
  const grown = (section, name) =>
    before && before[section] ? Math.max(0, (now[section] || {})[name] - before[section][name]) : 0;
  const rate = (section, name) => seconds ? grown(section, name) / seconds : 0;
  document.getElementById("pool").textContent = now.pool.join(" ");
  state("keeper " + (now.keeper.hangs ? "hangs" : now.keeper.state) + ", pid " + now.keeper.pid + ", epoch " + now.keeper.epoch + ", policy " + now.keeper.policy, now.keeper.hangs);
  const live = blocks.live_blocks || 0;
  const rows = [
    row("in use", percent(live, geometry.capacity_blocks) + " of " + bytes(geometry.capacity_bytes) + ": " + number(live) + " of " +
        number(geometry.capacity_blocks) + " blocks of " + bytes(geometry.block_bytes), live / geometry.capacity_blocks),
    row("hit rate now", hits(name => grown("totals", name))),
    row("hit rate ever", hits(name => totals[name]), totals.hit_rate || 0),
    row("traffic", "loads " + bytes(rate("totals", "read_bytes")) + "/s, stores " + bytes(rate("totals", "written_bytes")) +
        "/s, prompts " + rate("totals", "prompts").toFixed(1) + "/s, evictions " + rate("counters", "evictions").toFixed(1) + "/s"),
  ];
  const suspects = now.attached.filter(client => client.state === "suspected" || client.state === "held");
  rows.push(row("engines", now.attached.length + " of " + geometry.clients + " slots" +
                (now.attached.length ? ": pid " + now.attached.map(client => client.pid).join(", ") : "")));
  if (suspects.length) {
    rows.push(row("suspects", suspects.map(client => "pid " + client.pid + " " + client.state).join(", "), undefined, true));
  }
  if (blocks.quarantined_blocks) rows.push(row("quarantined", number(blocks.quarantined_blocks) + " blocks", undefined, true));
  if (now.storage) {
    rows.push(row("storage", now.storage.kind + (now.storage.in_use ? "" : ", out of use") + ", " + bytes(now.storage.stored_bytes) +
                  ", " + number(now.storage.queued_blocks) + " blocks wait", undefined, !now.storage.in_use));
  }
  for (const space of now.namespaces || []) rows.push(row("namespace " + space.id, space.name || space.digest));
  for (const cause of now.misses.causes) rows.push(row("misses", cause.detail));
  document.getElementById("rows").replaceChildren(...rows.flat());
}

async function look() {
  try {
    const answer = await fetch("/status", {cache: "no-store", signal: AbortSignal.timeout(5000)}), now = await answer.json(), nowMs = performance.now();
    if (answer.ok) {
      show(now, before && before.uuid === now.uuid ? (nowMs - beforeMs) / 1000 : 0);
      before = now;
      beforeMs = nowMs;
    } else {
      state("this process's keeper does not rule: " + now.role, true);
    }
  } catch (error) {
    state(error.name === "TimeoutError" ? "no answer for 5 s: the keeper's process hangs" : "no answer: " + error.message, true);
  }
  setTimeout(look, 2000);
}
look();
</script>
</body>
</html>
)html";

}  // namespace cachalot::node
