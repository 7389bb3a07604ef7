// Trouble: what operators were told, what was refused or dropped and why, and how long things take.

import { bytes, count, html, to, useLive, when } from "../lib.js";
import { Bars, Card, Latencies, T } from "../parts.js";

/** Where an event is mended. @type {Record<string, string>} */
const PLACES = { slow_consumer: "connections", connections_refused: "connections", unfinished_frames: "connections", wrong_tokens: "access" };

export default function Trouble() {
  const { figures, problem } = useLive(["trouble", "overview"]);
  const told = figures?.trouble;
  if (problem) return html`<p class="bad" role="alert">${problem}</p>`;
  if (!told) return html`<div class="top"><h1>Trouble</h1></div><p class="soft">Loading.</p>`;
  const reasons = (/** @type {string} */ prefix) =>
    Object.entries(told.counters).filter(([name, value]) => name.startsWith(`${prefix}.`) && value).map(([name, value]) => ({ name: name.slice(prefix.length + 1).replaceAll("_", " "), value, text: count(value) })).sort((a, b) => b.value - a.value);
  const faults = ["protocol_errors", "torn_frames", "slow_consumers", "refused_connections", "unfinished_closed", "disk_waits", "redelivered", "gave_way"]
    .map((name) => ({ name: name.replaceAll("_", " "), value: told.counters[name] ?? 0, text: count(told.counters[name] ?? 0) })).filter((one) => one.value);
  const errors = told.errors ?? [];
  return html`<div class="top"><h1>Trouble</h1><p>${figures.overview.trouble ? html`<strong class="bad">${figures.overview.trouble}</strong>` : html`<span class="good">The disk accepts writes.</span>`}</p></div>
    <div class="cards">
      <${Card} title="Events" wide aside="the latest hundred">${told.events.length ? [...told.events].reverse().map((one) => html`<div class="event"><span class="soft">${when(one.time)}</span>
        <span>${PLACES[one.event] ? html`<a href=${to(PLACES[one.event])}>${one.event.replaceAll("_", " ")}</a>` : html`<strong>${one.event.replaceAll("_", " ")}</strong>`}</span><span><${T} v=${one.who} />: <${T} v=${one.text} /></span></div>`) : html`<p class="soft">No events yet.</p>`}<//>
      <${Card} title="Protocol errors" wide aside="the latest fifty, with the bytes around the fault">${errors.length ? [...errors].reverse().map((/** @type {any} */ one) => html`<div class="event"><span class="soft">${when(one.time)}</span><span><${T} v=${one.dialect} /></span>
        <span><${T} v=${one.peer} />: byte ${one.offset}: <${T} v=${one.reason} />${one.hex && html`<br /><a class="mono" href=${to("inspector", { hex: one.hex })}><${T} v=${one.hex} /></a>`}</span></div>`) : html`<p class="soft">None.</p>`}<//>
      <${Card} title="Refused, by reason"><${Bars} rows=${reasons("refused")} /><//>
      <${Card} title="Not delivered, by reason"><${Bars} rows=${reasons("dropped")} /><//>
      <${Card} title="Faults and waits"><${Bars} rows=${[...faults, ...reasons("timeouts").map((one) => ({ ...one, name: `timeout of a ${one.name}` }))]} /><//>
      <${Card} title="Publish to delivery" aside="from reading a socket to writing to the subscribers"><${Latencies} state=${told.latencies.delivery} /><//>
      ${told.latencies.commit && html`<${Card} title="Commit to the disk"><${Latencies} state=${told.latencies.commit} /><//>`}
      <${Card} title="Request to reply"><${Latencies} state=${told.latencies.request} /><//>
      <${Card} title="Waits for subscribers"><p>${bytes(figures.overview.outbox)} of ${bytes(figures.overview.outbox_most)} are used by outboxes; ${figures.overview.waiting} clients wait. <a href=${to("connections")}>Connections</a></p><//>
    </div>`;
}
