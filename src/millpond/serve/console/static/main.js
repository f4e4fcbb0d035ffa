// The frame: which page the address names, the token, and whether the server can be reached.
import { Refused, Unreachable, ask, token } from "./api.js";
import { errorBox, field, h, plain } from "./dom.js";
import { alertsPage } from "./alerts.js";
import { jobPage, jobsPage } from "./jobs.js";
import { keyPage } from "./key.js";
import { livePage } from "./live.js";
import { modelsPage } from "./models.js";
import { savepointsPage } from "./savepoints.js";
import { sqlPage } from "./sql.js";
import { tablePage, tablesPage } from "./tables.js";

const PAGES = [
  { path: "jobs", title: "Jobs", list: jobsPage, one: { "": jobPage } },
  { path: "tables", title: "Tables", list: tablesPage, one: { "": tablePage, key: keyPage, live: livePage }, words: { key: "one key", live: "live changes" } },
  { path: "sql", title: "SQL", list: sqlPage },
  { path: "savepoints", title: "Savepoints", list: savepointsPage },
  { path: "models", title: "Models", list: modelsPage },
  { path: "alerts", title: "Alerts", list: alertsPage },
];
// What no header can carry.
const NO_TOKEN = /[^\t\x20-\x7e\x80-\xff]/u;
const RETRY_SECONDS = [1, 2, 4, 8];

const content = document.getElementById("content");
const connection = document.getElementById("connection");
const leave = document.getElementById("leave");
const said = document.getElementById("said");
let running = new AbortController();
let lost = 0;

/** The page that the address names: {page, title, show, name, query}. */
function where() {
  const [path, query = ""] = location.hash.replace(/^#\/?/u, "").split("?", 2);
  const [first, name, what = ""] = path.split("/").map(decoded);
  const page = PAGES.find((each) => each.path === first) ?? PAGES[0];
  const one = name && page.one?.[what];
  const title = one ? [name, page.words?.[what]].filter(Boolean).join(": ") : page.title;
  return { page, title, show: one || page.list, name: one ? name : null, query: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function reached(is) {
  if (is && lost) say("The server answers again.");
  if (!is && !lost) say("The server can't be reached.");
  lost = is ? 0 : lost + 1;
  connection.textContent = is ? "" : "The server can't be reached; trying again. What is shown may be old.";
  document.body.classList.toggle("lost", !is);
}

/** Let screen readers say it. */
function say(words) {
  said.textContent = plain(words);
}

const pause = (time, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, time * 1000);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); });
  });

/** What a page has: where it is, and how it asks. */
function contextOf(place, signal) {
  const view = h("div");
  const context = { ...place, view, signal, say };
  context.reached = () => reached(true);
  /** Ask until there is an answer; throws what the server refuses. */
  context.ask = (path, options = {}) => context.patiently(() => ask(path, { ...options, signal }));
  context.patiently = async (read) => {
    for (;;) {
      try {
        const found = await read();
        reached(true);
        return found;
      } catch (wrong) {
        if (wrong instanceof Refused) reached(true);
        if (!(wrong instanceof Unreachable) || signal.aborted) throw wrong;
        reached(false);
        await pause(RETRY_SECONDS[Math.min(lost, RETRY_SECONDS.length) - 1], signal);
        signal.throwIfAborted();
      }
    }
  };
  /** Ask again and again while the page is in sight, and show each answer. */
  context.keep = async (interval, load, show) => {
    show(await load());
    context.meanwhile(async () => {
      while (!signal.aborted) {
        await pause(interval, signal);
        if (signal.aborted || document.hidden) continue;
        show(await load());
      }
    });
  };
  /** What goes on while the page is shown. */
  context.meanwhile = (work) => { work().catch((wrong) => failed(wrong, view, signal)); };
  /** A part of the page that may be refused without the rest. */
  context.part = async (title, build) => {
    const section = h("section", {}, h("h2", {}, title));
    view.append(section);
    try {
      section.append(...[await build(section)].flat().filter(Boolean));
    } catch (wrong) {
      if (wrong.status === 401 || wrong.name === "AbortError") throw wrong;
      section.append(errorBox(wrong));
    }
  };
  return context;
}

function failed(wrong, view, signal) {
  if (signal.aborted || wrong.name === "AbortError") return;
  if (wrong instanceof Refused && wrong.status === 401) askToken(wrong);
  else {
    view.querySelector(":scope > .error")?.remove();
    view.prepend(errorBox(wrong));
    if (!(wrong instanceof Refused) && !(wrong instanceof Unreachable)) console.error(wrong);
  }
}

async function show() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const place = where();
  document.title = `${plain(place.title)} – Millpond`;
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.dataset.path === place.page.path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave.hidden = token.get() === null;
  const context = contextOf(place, signal);
  const heading = h("h1", { tabindex: "-1" }, place.title);
  content.replaceChildren(heading, context.view);
  content.setAttribute("aria-busy", "true");
  if (document.activeElement && document.activeElement !== document.body) heading.focus({ preventScroll: true });
  window.scrollTo(0, 0);
  try {
    await place.show(context);
  } catch (wrong) {
    failed(wrong, context.view, signal);
  }
  if (!signal.aborted) content.removeAttribute("aria-busy");
}

function askToken(wrong) {
  running.abort();
  const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const problem = h("div", {}, token.get() === null ? null : errorBox(wrong));
  token.forget();
  leave.hidden = true;
  const form = h("form", { class: "sign-in", submit: (event) => {
    event.preventDefault();
    const typed = input.value.trim();
    input.value = "";
    if (NO_TOKEN.test(typed)) {
      problem.replaceChildren(errorBox({ condition: "TOKEN_NEEDED", message: "A token can't have such characters.", hint: "Copy it again, whole and without what stands around it." }));
      input.focus();
      return;
    }
    token.set(typed);
    show();
  } },
  h("h1", {}, "This server needs a token"), problem,
  field("Token", input, "Whoever runs the server gives it out (millpond token). It stays in this tab until you close it."),
  h("button", { type: "submit" }, "Sign in"));
  content.replaceChildren(form);
  content.removeAttribute("aria-busy");
  document.title = "Sign in – Millpond";
  input.focus();
}

document.getElementById("pages").append(...PAGES.map((page) => h("li", {}, h("a", { href: `#/${page.path}`, "data-path": page.path }, page.title))));
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); content.focus(); });
leave.addEventListener("click", () => { token.forget(); location.hash = "#/jobs"; show(); });
window.addEventListener("hashchange", show);
show();
