// The frame around all pages: who is logged in, which page is shown, keys, what went wrong.

import { Refused, ask, html, place, render, state, to, useEffect, useRef, useState } from "./lib.js";

/** The pages, by the names of their files: title, group, the key behind `g`, only for operators. @type {[string, string, string, string, boolean?][]} */
const PAGES = [
  ["overview", "Overview", "", "o"],
  ["explore", "Explore", "Messages", "e"],
  ["queues", "Queues", "Messages", "q"],
  ["keys", "Keys", "Messages", "k"],
  ["chat", "Chat", "Messages", "r"],
  ["log", "Log", "History", "l"],
  ["sql", "SQL", "History", "s", true],
  ["message", "Message", "History", "m"],
  ["inspector", "Inspector", "History", "i"],
  ["spark", "Spark", "History", "p"],
  ["connections", "Connections", "Operation", "c", true],
  ["flow", "Flow", "Operation", "f", true],
  ["trouble", "Trouble", "Operation", "t", true],
  ["cluster", "Cluster", "Operation", "n"],
  ["access", "Access", "Operation", "a"],
];
const ICON = new URL("./icon.svg", import.meta.url).pathname;

/** What the browser shows, or what was chosen here: "", "light" or "dark". @param {string} theme */
function dress(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("theme", theme);
  window.dispatchEvent(new CustomEvent("wirelake-theme"));
}
dress(localStorage.getItem("theme") ?? "");

// Asked for at once, so that neither waits for the other.
/** @type {Promise<any> | null} */
let early = ask("/v1/session");
early.catch(() => {});
load(place().page).catch(() => {});

/** The module of a page. @param {string} name */
function load(name) {
  return import(`./pages/${PAGES.some(([known]) => known === name) ? name : "overview"}.js`);
}

function App() {
  const [session, setSession] = useState(state.session);
  const [failed, setFailed] = useState("");
  const enter = async () => {
    try {
      const asked = early ?? ask("/v1/session");
      early = null;
      state.session = await asked;
      setFailed("");
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        state.session = /** @type {any} */ ({ stranger: true });
      } else {
        setFailed(error instanceof Error ? error.message : String(error));
        setTimeout(enter, 2000);
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
    enter();
  }, []);
  if (failed) return html`<p class="boot" role="alert">${failed}; trying again.</p>`;
  if (!session) return html`<p class="boot">Wirelake</p>`;
  if (session.stranger) return html`<${Login} onDone=${enter} />`;
  return html`<${Frame} session=${session} onLogout=${enter} />`;
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
    <h1 class="brand"><img src=${ICON} alt="" />Wirelake</h1>
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
  const [help, setHelp] = useState(false);
  const head = useRef(/** @type {any} */ (null));
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
  const shown = PAGES.filter(([name, , , , admin]) => (session.admin || !admin) && (name !== "sql" || session.sql));
  const known = shown.find(([name]) => name === at.page) ?? shown[0];
  useEffect(() => {
    let current = true;
    document.title = `${known[1]} · Wirelake`;
    load(known[0]).then(
      (module) => current && setPage({ name: known[0], Page: module.default }),
      () => { if (current) cannotLoad(setTold); },
    );
    return () => {
      current = false;
    };
  }, [known[0]]);
  useEffect(() => {
    let waits = 0; // until when a key behind `g` counts
    const pressed = (/** @type {KeyboardEvent} */ event) => {
      const target = event.target instanceof Element ? event.target : document.body;
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (target.closest("input:not([type=checkbox]),textarea,select")) {
        if (event.key === "Escape") /** @type {HTMLElement} */ (target).blur();
        return;
      }
      const now = Date.now();
      const wanted = waits > now && shown.find((one) => one[3] === event.key);
      waits = 0;
      if (wanted) {
        location.hash = to(wanted[0]);
        head.current?.focus();
      } else if (event.key === "g") waits = now + 1500;
      else if (event.key === "?") setHelp(true);
      else if (event.key === "/") head.current?.querySelector("input:not([type=checkbox]):not([type=file])")?.focus();
      else {
        const own = head.current?.querySelector(`[data-key="${CSS.escape(event.key)}"]:not(:disabled)`);
        if (!own) return;
        own.click();
      }
      event.preventDefault();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [shown.map(([name]) => name).join()]);
  const logOut = async () => {
    await ask("/v1/session", { method: "DELETE" }).catch(() => {});
    onLogout();
  };
  let group = "";
  return html`<a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); head.current?.focus(); }}>Skip to the page</a>
    ${away && html`<div class="banner" role="status">The broker is away. This page goes on when it is back.</div>`}
    <div class="shell">
      <header class=${open ? "side open" : "side"}>
        <div class="bar"><a class="brand" href=${to("overview")}><img src=${ICON} alt="" />Wirelake</a>
          <button class="menu" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>Menu</button></div>
        <nav aria-label="Pages">${shown.map(([name, title, of]) => {
          const heading = of !== group ? html`<span class="group">${of}</span>` : null;
          group = of;
          return html`${heading}<a href=${to(name)} aria-current=${name === known[0] ? "page" : undefined}>${title}</a>`;
        })}<a href="/docs">HTTP interface</a></nav>
        <div class="who">${session.open ? "No tokens are configured." : html`${session.name}${session.admin ? "" : ", read-only"}
            <br /><button onClick=${logOut}>Log out</button>`}
          <br />Version ${session.version}
          <br /><label>Theme <select onChange=${(/** @type {any} */ e) => dress(e.target.value)} value=${localStorage.getItem("theme") ?? ""}><option value="">as the system</option><option value="light">light</option><option value="dark">dark</option></select></label>
          <br /><button class="link" aria-haspopup="dialog" onClick=${() => setHelp(true)}>Keyboard</button> <kbd>?</kbd></div>
      </header>
      <main id="main" ref=${head} tabindex="-1">${page?.name === known[0]
        ? html`<${page.Page} key=${known[0]} session=${session} query=${at.query} />`
        : html`<p class="soft">Loading.</p>`}</main>
    </div>
    ${help && html`<${Help} pages=${shown} onClose=${() => setHelp(false)} />`}
    ${told && html`<div class="toast" role="status">${told}</div>`}`;
}

/** A page could not be loaded: the broker is away, or has other files since it was started anew. @param {(text: string) => void} tell */
async function cannotLoad(tell) {
  const last = Number(sessionStorage.getItem("reloaded") ?? 0);
  const isThere = await fetch("/healthz").then(() => true, () => false);
  if (isThere && Date.now() - last > 10_000) {
    sessionStorage.setItem("reloaded", String(Date.now()));
    location.reload();
  } else tell("This page cannot be loaded. Is the broker there?");
}

/** What keys do. @param {{pages: typeof PAGES, onClose: () => void}} props */
function Help({ pages, onClose }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => before instanceof HTMLElement && before.focus();
  }, []);
  /** @type {[string, string][]} */
  const rows = [
    ["/", "the first field of the page"],
    ["Esc", "leave a field, close this"],
    ["↑ ↓ Home End", "between rows of a table, messages of a tail, addresses of the tree"],
    ["→ ←", "open and close a branch of the tree"],
    ["Enter", "show the row, listen to the address"],
    ["p", "pause or go on with a tail"],
    ["r", "refresh what is not live"],
    ["Ctrl Enter", "run the SQL"],
    ["?", "this list"],
  ];
  return html`<dialog class="dialog" ref=${dialog} onClose=${onClose} aria-label="Keys of the keyboard">
    <h2>Keys of the keyboard</h2>
    <dl class="kv">${rows.map(([keys, text]) => html`<dt>${keys.split(" ").map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${text}</dd>`)}</dl>
    <h3>Go to</h3>
    <dl class="kv pages">${pages.map(([, title, , key]) => html`<dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>${title}</dd>`)}</dl>
    <div class="row"><button class="main" autofocus onClick=${() => dialog.current?.close()}>Close</button></div>
  </dialog>`;
}

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.textContent = "";
render(html`<${App} />`, app);
