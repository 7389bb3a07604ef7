// The frame around all pages: who is logged in, which page is shown, what went wrong.

import { Refused, ask, html, place, render, state, to, useEffect, useRef, useState } from "./lib.js";

/** The pages, by the names of their files. @type {[string, string, string, boolean?][]} */
const PAGES = [
  ["overview", "Overview", ""],
  ["explore", "Explore", "Messages"],
  ["queues", "Queues", "Messages"],
  ["keys", "Keys", "Messages"],
  ["chat", "Chat", "Messages"],
  ["log", "Log", "History"],
  ["sql", "SQL", "History", true],
  ["message", "Message", "History"],
  ["inspector", "Inspector", "History"],
  ["spark", "Spark", "History"],
  ["connections", "Connections", "Operation", true],
  ["flow", "Flow", "Operation", true],
  ["trouble", "Trouble", "Operation", true],
  ["access", "Access", "Operation"],
];

function App() {
  const [session, setSession] = useState(state.session);
  const [failed, setFailed] = useState("");
  const load = async () => {
    try {
      state.session = await ask("/v1/session");
      setFailed("");
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        state.session = /** @type {any} */ ({ stranger: true });
      } else {
        setFailed(error instanceof Error ? error.message : String(error));
        setTimeout(load, 2000);
        return;
      }
    }
    setSession(state.session);
  };
  useEffect(() => {
    state.onLogout = () => {
      state.session = /** @type {any} */ ({ stranger: true });
      setSession(state.session);
    };
    load();
  }, []);
  if (failed) return html`<p class="boot" role="alert">${failed}; trying again.</p>`;
  if (!session) return html`<p class="boot">Wirelake</p>`;
  if (session.stranger) return html`<${Login} onDone=${load} />`;
  return html`<${Frame} session=${session} onLogout=${load} />`;
}

/** @param {{onDone: () => void}} props */
function Login({ onDone }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await ask("/v1/session", { method: "POST", body: { token } });
      setToken("");
      onDone();
    } catch (reason) {
      setError(reason instanceof Error ? reason.message : String(reason));
    }
    setBusy(false);
  };
  return html`<main class="login card">
    <h1 class="brand"><img src="/console/icon.svg" alt="" />Wirelake</h1>
    <form onSubmit=${submit}>
      <label class="field">Token<input ref=${field} type="password" autocomplete="current-password" value=${token}
        onInput=${(/** @type {any} */ e) => setToken(e.target.value)} required /></label>
      <div class="row"><button class="main" disabled=${busy || !token}>${busy ? "One moment" : "Log in"}</button></div>
      <p class="bad" role="alert">${error}</p>
    </form>
    <p class="soft">Tokens are made by <code>wirelake token</code>. Without the right <code>admin</code> the console only shows things.</p>
  </main>`;
}

/** @param {{session: import("./lib.js").Session, onLogout: () => void}} props */
function Frame({ session, onLogout }) {
  const [at, setAt] = useState(place());
  const [page, setPage] = useState(/** @type {any} */ (null));
  const [open, setOpen] = useState(false);
  const [away, setAway] = useState(false);
  const [told, setTold] = useState("");
  const head = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const moved = () => {
      setAt(place());
      setOpen(false);
    };
    const goneOrBack = (/** @type {any} */ event) => setAway(event.detail);
    let timer = 0;
    const say = (/** @type {any} */ event) => {
      setTold(event.detail);
      clearTimeout(timer);
      timer = window.setTimeout(() => setTold(""), 6000);
    };
    window.addEventListener("hashchange", moved);
    moved(); // the address may have changed since this was rendered
    window.addEventListener("wirelake-away", goneOrBack);
    window.addEventListener("wirelake-tell", say);
    return () => {
      window.removeEventListener("hashchange", moved);
      window.removeEventListener("wirelake-away", goneOrBack);
      window.removeEventListener("wirelake-tell", say);
    };
  }, []);
  const shown = PAGES.filter(([name, , , admin]) => (session.admin || !admin) && (name !== "sql" || session.sql));
  const known = shown.find(([name]) => name === at.page) ?? shown[0];
  useEffect(() => {
    let current = true;
    document.title = `${known[1]} · Wirelake`;
    import(`./pages/${known[0]}.js`).then(
      (module) => current && setPage({ name: known[0], Page: module.default }),
      () => current && setTold("this page cannot be loaded; is the broker there?"),
    );
    return () => {
      current = false;
    };
  }, [known[0]]);
  const logOut = async () => {
    await ask("/v1/session", { method: "DELETE" }).catch(() => {});
    onLogout();
  };
  let group = "";
  return html`<a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); head.current?.focus(); }}>Skip to the page</a>
    ${away && html`<div class="banner" role="status">The broker is away. This page goes on when it is back.</div>`}
    <div class="shell">
      <header class=${open ? "side open" : "side"}>
        <div class="bar"><a class="brand" href=${to("overview")}><img src="/console/icon.svg" alt="" />Wirelake</a>
          <button class="menu" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>Menu</button></div>
        <nav aria-label="Pages">${shown.map(([name, title, of]) => {
          const heading = of !== group ? html`<span class="group">${of}</span>` : null;
          group = of;
          return html`${heading}<a href=${to(name)} aria-current=${name === known[0] ? "page" : undefined}>${title}</a>`;
        })}<a href="/docs">HTTP interface</a></nav>
        <div class="who">${session.open ? "No tokens are configured." : html`${session.name}${session.admin ? "" : ", read-only"}
            <br /><button onClick=${logOut}>Log out</button>`}
          <br />Version ${session.version}</div>
      </header>
      <main id="main" ref=${head} tabindex="-1">${page?.name === known[0]
        ? html`<${page.Page} key=${known[0]} session=${session} query=${at.query} />`
        : html`<p class="soft">Loading.</p>`}</main>
    </div>
    ${told && html`<div class="toast" role="status">${told}</div>`}`;
}

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.textContent = "";
render(html`<${App} />`, app);
