// Form: renews what follows from a form while somebody types. The server makes it all: no figure is computed here.
import { fetchedPage, showCopies } from "./page.mjs";

const PAUSE_MS = 250; // without a key, before the server is asked
const form = document.querySelector("[data-form]");
let waiting = 0, asked = 0;

function addressOf() {
  const typed = [...new FormData(form)].filter(([, text]) => text !== "");
  return `${form.getAttribute("action")}?${new URLSearchParams(typed)}`;
}

async function renew() {
  const address = addressOf(), mine = asked += 1;
  let page;
  try {
    page = await fetchedPage(address);
  } catch (error) {
    if (mine === asked) document.querySelector("#sum").textContent = `No quote: the server did not answer (${error.message}).`;
    return;
  }
  if (mine !== asked) return; // somebody typed on, and a newer answer comes
  for (const old of document.querySelectorAll("[data-swap]")) { // the element stays: a screen reader reads what changes in it
    const made = page.getElementById(old.id);
    old.replaceChildren(...[...made.childNodes].map((node) => document.adoptNode(node)));
    if (made.hasAttribute("href")) old.setAttribute("href", made.getAttribute("href"));
  }
  for (const input of form.elements) {
    const isWrong = input.id && page.getElementById(input.id)?.getAttribute("aria-invalid");
    if (isWrong) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
  history.replaceState(null, "", address); // reloaded or passed on, it is the same order
  showCopies();
}

form.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(renew, PAUSE_MS);
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(waiting);
  renew();
});
