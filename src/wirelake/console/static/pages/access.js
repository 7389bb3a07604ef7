// Access: the tokens by name, what they may do, and why something is refused.

import { ask, html, useAnswer, useState } from "../lib.js";
import { Card, T, Table } from "../parts.js";

const KINDS = ["publish", "subscribe", "serve", "store", "declare", "clients", "admin"];

/** @param {{session: import("../lib.js").Session}} props */
export default function Access({ session }) {
  const list = useAnswer(() => ask("/v1/access"), []);
  const [form, setForm] = useState({ token: "", kind: "publish", address: "" });
  const [told, setTold] = useState(/** @type {any} */ (null));
  const tokens = list.value?.tokens ?? [];
  const check = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      const query = Object.fromEntries(Object.entries(form).filter(([, value]) => value));
      setTold(await ask(`/v1/access/may?${new URLSearchParams(query)}`));
    } catch (error) {
      setTold({ error: error instanceof Error ? error.message : String(error) });
    }
  };
  const set = (/** @type {string} */ name) => (/** @type {any} */ e) => { setTold(null); setForm({ ...form, [name]: e.target.value }); };
  const filters = (/** @type {string} */ kind) => ({ key: kind, title: kind, show: (/** @type {any} */ one) => one[kind].map((/** @type {string} */ filter) => html`<code class="tag"><${T} v=${filter} /></code> `) });
  return html`<div class="top"><h1>Access</h1><p class="soft">${session.open ? "No tokens are configured: everybody may do everything." : ""}</p></div>
    <div class="cards">
      <${Card} title="May this token do that?" wide>
        <form class="form" onSubmit=${check}>
          ${session.admin && !session.open && html`<label class="field">Token<select value=${form.token} onChange=${set("token")}><option value="">mine, ${session.name}</option>${tokens.map((/** @type {any} */ one) => html`<option value=${one.name}>${one.name}</option>`)}</select></label>`}
          <label class="field">What<select value=${form.kind} onChange=${set("kind")}>${KINDS.map((one) => html`<option>${one}</option>`)}</select></label>
          ${form.kind !== "admin" && html`<label class="field">Address or filter<input class="mono" required value=${form.address} onInput=${set("address")} /></label>`}
          <span class="row"><button class="main">Check</button></span></form>
        ${told && html`<p role="status">${told.error ? html`<span class="bad"><${T} v=${told.error} /></span>` : html`<strong class=${told.allowed ? "good" : "bad"}>${told.allowed ? "Yes" : "No"}</strong>: <${T} v=${told.why} />.`}</p>`}<//>
      <${Card} title=${session.admin ? "Tokens" : "This token"} wide aside="by name; nobody can see a token itself">
        ${list.error && html`<p class="bad" role="alert">${list.error}</p>`}
        <${Table} name="Tokens" rows=${tokens} id="name" empty="Loading." columns=${[
          { key: "name", title: "name", show: (/** @type {any} */ one) => html`<${T} v=${one.name} />${one.token || session.open ? "" : html` <span class="soft">without a token</span>`}` },
          { key: "admin", title: "admin", show: (/** @type {any} */ one) => (one.admin ? "yes" : "no") },
          ...["publish", "subscribe", "serve", "store", "declare", "clients"].map(filters),
        ]} />
        <p class="soft">Tokens are part of the configuration. <code>wirelake token</code> makes one; the broker reads the file again on SIGHUP.</p><//>
    </div>`;
}
