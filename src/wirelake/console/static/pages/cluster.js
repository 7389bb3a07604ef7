// Cluster: nodes, who serves which partition, links, take-overs; draining a node, moving a partition.

import { arrows, ask, attempt, bytes, count, duration, html, perSecond, useLive, useRef, useState, visible, when } from "../lib.js";
import { Card, Confirm, T, Table, columns } from "../parts.js";

const COLOURS = ["#2a66a6", "#a8461b", "#1d7a3e", "#7a4bb0", "#0e7480", "#a83279", "#6b6a14", "#54616f"];

/** @typedef {(one: any) => any} Show */

/** @param {{session: any}} props */
export default function Cluster({ session }) {
  const { figures, problem } = useLive(["cluster"]);
  const [chosen, setChosen] = useState(0);
  const [to, setTo] = useState("");
  const [question, setQuestion] = useState(/** @type {any} */ (null));
  const known = useRef(/** @type {string[]} */ ([]));
  const part = figures?.cluster ?? {};
  /** @type {{nodes: any[], partitions: any[]}} */
  const { nodes, partitions } = part;
  /** @type {Show} */
  const top = (text) => html`<div class="top"><h1>Cluster</h1><p class="grow">${text}</p></div>`;
  if (part.error === "not_found") return html`${top("This broker runs alone, without a cluster.")}
    <${Card} title="Start a cluster"><p>Run several nodes with the same NATS servers, which need JetStream:</p><pre tabindex="0">wirelake serve --cluster nats://HOST:4222 --node NAME</pre><//>`;
  if (!nodes) return top(problem || part.error ? html`<span class="bad" role="alert"><${T} v=${problem || part.text} /></span>` : "Loading.");

  for (const { node } of nodes) if (!known.current.includes(node)) known.current.push(node);
  /** @type {Show} */
  const colour = (node) => COLOURS[known.current.indexOf(node) % COLOURS.length];
  /** @type {Show} */
  const name = ({ node }) => html`<span class="nowrap"><i class="dot" style=${{ background: colour(node) }}></i><${T} v=${node} /></span>`;
  /** @type {Show} */
  const told = ({ partition, served, owner, epoch, moved_to }) => {
    const lags = nodes.filter((one) => partition in one.standby).map((one) => `${one.node}, ${count(one.standby[partition])} messages behind`);
    return visible(`Partition ${partition}: ${served ? `served by ${owner}, epoch ${epoch || "unknown"}` : "nobody serves it"}. Standby: ${lags.join("; ") || "none"}.${moved_to ? ` An operator moved it to ${moved_to}.` : ""}`);
  };
  const unserved = partitions.filter((one) => !one.served).map((one) => one.partition);
  /** @type {any[]} */
  const links = nodes.flatMap(({ node, links }) => links.map((/** @type {any} */ one) => ({ ...one, from: node })));
  const wrong = [
    unserved.length && `Nobody serves ${unserved.join(", ")}: clients are refused with busy until a node takes over.`,
    !part.same_settings && "Tokens, limits or queues differ between nodes: compare their settings.",
    new Set(nodes.map((one) => one.version)).size > 1 && "Nodes run different versions.",
    ...nodes.flatMap(({ node, deaf, silent, weak }) => [deaf && `${node} does not hear its own heartbeats: can it reach NATS?`, silent && `${node} does not tell its state.`, weak && `The streams are weak: ${weak}.`]),
    ...links.map((one) => !one.open && `The link from ${one.from} to ${one.node} is down. ${one.reason}`),
  ].filter((one, at, all) => one && all.indexOf(one) === at);
  const at = partitions[chosen];
  const others = nodes.map((one) => one.node).filter((one) => one !== at?.owner);
  const target = others.includes(to) ? to : others[0];
  /** @type {Show} */
  const drain = ({ node, draining }) => attempt(() => ask(`/v1/cluster/nodes/${encodeURIComponent(node)}/drain`, { method: draining ? "DELETE" : "PUT" }), `${node} ${draining ? "takes partitions again" : "serves no partition"}.`);
  const move = () => attempt(() => ask(`/v1/cluster/partitions/${chosen}/move?${new URLSearchParams({ to: target })}`, { method: "POST" }), `${target} serves partition ${chosen}.`);
  const changes = nodes.flatMap(({ node, changes = [] }) => changes.filter((/** @type {any} */ one) => one.event === "owner_changed" || node === part.node)).sort((a, b) => b.time - a.time);

  return html`${top(html`<strong class=${wrong.length ? "warn" : "good"}>${partitions.length - unserved.length} of ${partitions.length} partitions are served, nodes alive: ${nodes.length}.</strong>`)}
    <div class="cards">
      ${wrong.length > 0 && html`<${Card} title="What is wrong now" wide kind="alarm"><ul class="plain">${wrong.map((one) => html`<li><${T} v=${one} /></li>`)}</ul><//>`}
      <${Card} title="Partitions" wide aside="by owner">
        <div class="map" role="group" aria-label="Map" onKeyDown=${arrows("button", ({ key }, one) => /** @type {any} */ ({ ArrowRight: one.nextSibling, ArrowLeft: one.previousSibling })[key]?.focus())}>${partitions.map((one, k) => html`<button class=${`${one.served ? "" : "no"} ${one.moved_to && "pin"}`}
          tabindex=${k === chosen ? 0 : -1} aria-pressed=${String(k === chosen)} aria-label=${told(one)} title=${told(one)} style=${{ "--of": one.served ? colour(one.owner) : "none" }} onFocus=${() => setChosen(k)} onClick=${() => setChosen(k)}>${k}</button>`)}</div>
        <div class="legend">${nodes.map(name)}</div>
        ${at && html`<p>${told(at)}</p>`}
        ${session.admin && at && target && html`<div class="row"><label>Move partition ${chosen} to <select value=${target} onChange=${(/** @type {any} */ e) => setTo(e.target.value)}>${others.map((one) => html`<option value=${one}>${visible(one)}</option>`)}</select></label> <button onClick=${() => setQuestion({})}>Move</button></div>`}<//>
      <${Card} title="Nodes" wide><${Table} name="Nodes" rows=${nodes.map((one) => ({ ...one, serves: one.owned.length, follows: Object.keys(one.standby).length }))} id="node" columns=${columns(
        ["node", "node", (one) => html`<span class="nowrap">${name(one)} ${one.node === part.node ? "(this one)" : /^https?:/.test(one.http) && html`<a href=${`${one.http}/#/cluster`}>console</a>`}</span>`],
        ["draining", "state", (one) => { const words = ["draining", "deaf", "silent"].filter((word) => one[word]); return html`<span class=${words[0] ? "warn" : "good"}>${words.join(", ") || "alive"}</span>`; }],
        ["drain", "", (one) => session.admin && html`<button onClick=${() => (one.draining ? drain(one) : setQuestion(one))}>${one.draining ? "Undo drain" : "Drain"}</button>`],
        ["serves", "serves", null, "n"],
        ["follows", "follows", null, "n"],
        ["clients", "clients", (one) => count(one.clients), "n"],
        ["received", "in", (one) => perSecond(one.received) || 0, "n"],
        ["delivered", "out", (one) => perSecond(one.delivered) || 0, "n"],
        ["owner_changes", "changes", (one) => count(one.owner_changes), "n"],
        ["takeovers", "take-over", (one) => (one.takeovers?.length ? duration(one.takeovers.at(-1)) : "–"), "n"],
        ["age", "up", (one) => duration(one.age), "n"],
        ["version", "version"],
        ["settings", "settings", (one) => html`<code>${visible(one.settings).slice(0, 6)}</code>`],
      )} /><//>
      <${Card} title="Links"><${Table} name="Links" rows=${links} empty="There is no other node." columns=${columns(
        ["from", "from"], ["node", "to"], ["role", "as"],
        ["open", "state", (one) => html`<span class=${one.open ? "good" : "bad"}>${one.open ? "open" : "down"}</span>`],
        ["moved", "sent", (one) => bytes(one.moved), "n"],
        ["buffered", "waiting", (one) => bytes(one.buffered), "n"],
        ["credit", "credit", (one) => bytes(one.credit), "n"],
        ["breaks", "breaks", null, "n"],
      )} /><//>
      <${Card} title="Changes">${changes.slice(0, 20).map((one) => html`<p><span class="soft">${when(one.time)}</span> <strong><${T} v=${one.node} /></strong> <${T} v=${one.text} /></p>`)}<//>
    </div>
    ${question && html`<${Confirm} title=${question.node ? "Drain the node?" : `Move partition ${chosen}?`} verb=${question.node ? "Drain" : "Move"} onClose=${() => setQuestion(null)} onDo=${() => (question.node ? drain(question) : move())}>
      <p>${question.node ? html`<${T} v=${question.node} /> hands its partitions to other nodes and takes no new ones. Its clients stay connected.` : html`<${T} v=${target} /> serves it from then on, while it is alive.`} What is sent to a partition waits while it changes hands.</p><//>`}`;
}
