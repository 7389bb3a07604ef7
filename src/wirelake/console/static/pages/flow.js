// Flow: who talks to whom. Producers by dialect, addresses, consumers; lines by messages a second.

import { colourOf, html, perSecond, to, useLive, useMemo, useState, visible } from "../lib.js";
import { Card, T } from "../parts.js";

const ROW = 26;
const MOST = 40;
const WIDTH = 1100;
/** Messages from client to client have no address. */
const DIRECT = "(direct messages)";

export default function Flow() {
  const { figures, problem } = useLive(["flow"]);
  const [depth, setDepth] = useState(0);
  const [search, setSearch] = useState("");
  const part = figures?.flow;
  const drawn = useMemo(() => part && draw(part, depth, search), [part, depth, search]);
  return html`<div class="top"><h1>Flow</h1><p class="soft">Who sends where, and who gets it, in messages a second, from the log of the last seconds.</p></div>
    ${problem && html`<p class="bad" role="alert">${problem}</p>`}
    <${Card} title="Who talks to whom" aside=${html`<span class="row"><input aria-label="Search" placeholder="search" value=${search} onInput=${(/** @type {any} */ e) => setSearch(e.target.value)} />
        <select aria-label="Levels of addresses" value=${depth} onChange=${(/** @type {any} */ e) => setDepth(Number(e.target.value))}><option value="0">whole addresses</option><option value="1">first level</option><option value="2">two levels</option><option value="3">three levels</option></select></span>`}>
      ${!drawn ? html`<p class="soft">Loading.</p>` : !drawn.addresses.length ? html`<p class="soft">Nothing was sent in the last seconds.</p>` : html`<${Picture} drawn=${drawn} />
        ${drawn.hidden > 0 && html`<p class="soft">${drawn.hidden} more with less traffic are not drawn.</p>`}
        <details><summary>As a list</summary><ul>${drawn.edges.map((/** @type {any} */ one) => html`<li><${T} v=${one.from.name} /> → <${T} v=${one.to.name} /> ${perSecond(one.rate)}</li>`)}</ul></details>`}<//>`;
}

/** Nodes in three columns, and the edges between them. @param {any} part @param {number} depth @param {string} search */
function draw(part, depth, search) {
  const cut = (/** @type {string} */ address) => (depth ? address.split("/").slice(0, depth).join("/") + (address.split("/").length > depth ? "/…" : "") : address);
  /** @type {Map<string, any>[]} */
  const columns = [new Map(), new Map(), new Map()];
  const node = (/** @type {number} */ column, /** @type {string} */ key, /** @type {any} */ more, /** @type {number} */ rate) => {
    let found = columns[column].get(key);
    if (!found) columns[column].set(key, (found = { key, column, rate: 0, ...more }));
    found.rate += rate;
    return found;
  };
  const edges = new Map();
  const edge = (/** @type {any} */ from, /** @type {any} */ end, /** @type {number} */ rate) => {
    const key = `${from.column} ${from.key} ${end.key}`;
    const found = edges.get(key) ?? { from, to: end, rate: 0 };
    found.rate += rate;
    edges.set(key, found);
  };
  const rates = new Map();
  for (const one of part.producers) {
    if (search && !`${one.source} ${one.address} ${one.dialect}`.includes(search)) continue;
    const from = node(0, `${one.dialect} ${one.source}`, { name: one.source || one.dialect || "broker", dialect: one.dialect }, one.rate);
    const middle = node(1, cut(one.address), { name: cut(one.address) || DIRECT, address: one.address }, one.rate);
    rates.set(one.address, (rates.get(one.address) ?? 0) + one.rate);
    edge(from, middle, one.rate);
  }
  for (const one of part.consumers) {
    const rate = rates.get(one.address);
    if (rate === undefined) continue;
    const end = node(2, String(one.number), { name: one.id || one.peer, dialect: one.dialect }, rate);
    edge(columns[1].get(cut(one.address)), end, rate);
  }
  let hidden = 0;
  const shown = columns.map((column) => {
    const sorted = [...column.values()].sort((a, b) => b.rate - a.rate);
    hidden += Math.max(0, sorted.length - MOST);
    return sorted.slice(0, MOST);
  });
  const height = Math.max(...shown.map((column) => column.length)) * ROW + 40;
  shown.forEach((column, place) => column.forEach((one, at) => {
    one.x = [150, WIDTH / 2 - 110, WIDTH - 190][place];
    one.y = 30 + (at + 0.5) * ((height - 40) / column.length);
    one.drawn = true;
  }));
  const kept = [...edges.values()].filter((one) => one.from.drawn && one.to.drawn).sort((a, b) => b.rate - a.rate);
  return { columns: shown, addresses: shown[1], edges: kept, height, hidden };
}

/** @param {{drawn: any}} props */
function Picture({ drawn }) {
  const most = Math.max(0.1, ...drawn.edges.map((/** @type {any} */ one) => one.rate));
  const stroke = (/** @type {any} */ one) => colourOf(one.from.dialect ?? one.to.dialect ?? "");
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Flow"><svg class="flow" viewBox=${`0 0 ${WIDTH} ${drawn.height}`} role="img" aria-label=${`${drawn.columns[0].length} producers, ${drawn.columns[1].length} addresses, ${drawn.columns[2].length} consumers`} style=${{ minWidth: "46rem" }}>
    ${[["producers", 150, "end"], ["addresses", WIDTH / 2, "middle"], ["consumers", WIDTH - 190, "start"]].map(([name, x, anchor]) => html`<text x=${x} y="14" text-anchor=${anchor} style=${{ fill: "var(--soft)" }}>${name}</text>`)}
    ${drawn.edges.map((/** @type {any} */ one) => {
      const [x1, x2] = one.from.column === 0 ? [one.from.x + 8, one.to.x - 6] : [one.from.x + 226, one.to.x - 8];
      const middle = (x1 + x2) / 2;
      return html`<path d=${`M${x1} ${one.from.y}C${middle} ${one.from.y} ${middle} ${one.to.y} ${x2} ${one.to.y}`} stroke-width=${1 + 9 * Math.sqrt(one.rate / most)} style=${{ stroke: stroke(one) }}><title>${visible(one.from.name)} → ${visible(one.to.name)}: ${perSecond(one.rate)}</title></path>`;
    })}
    ${drawn.columns.map((/** @type {any[]} */ column, /** @type {number} */ place) => column.map((one) => html`<g>
      ${place === 1 ? html`<a href=${one.address ? to("explore", { filter: depth(one) }) : to("log", { op: "direct" })}><rect x=${one.x - 4} y=${one.y - 10} width="228" height="20" rx="5" style=${{ fill: "var(--hover)", stroke: "var(--line)" }}></rect><text x=${one.x + 4} y=${one.y + 4}>${clip(one.name, 24)}</text><text x=${one.x + 218} y=${one.y + 4} text-anchor="end" style=${{ fill: "var(--soft)" }}>${perSecond(one.rate)}</text></a>`
        : html`<circle cx=${one.x} cy=${one.y} r="5" style=${{ fill: colourOf(one.dialect ?? "") }}></circle><text x=${place ? one.x + 12 : one.x - 12} y=${one.y + 4} text-anchor=${place ? "start" : "end"}><title>${visible(one.name)}, ${one.dialect}</title>${clip(one.name, 20)}</text>`}</g>`))}
  </svg></div>`;
}

/** The filter of a node: of an address that was cut, all below it. @param {any} node */
const depth = (node) => (node.name.endsWith("/…") ? `${node.name.slice(0, -1)}#` : node.address);

/** @param {string} text @param {number} size */
const clip = (text, size) => { const seen = visible(text); return seen.length > size ? `${seen.slice(0, size - 1)}…` : seen; };
