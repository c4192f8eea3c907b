// The page: the chat, the live view, and the key that both may need.

import { setKey } from "./api.js";
import { startChat } from "./chat.js";
import { byId } from "./elements.js";
import { lookNow, startLive } from "./live.js";

function askForKey(error) {
  if (error.status !== 401 || !byId("key-form").hidden) return;
  byId("key-form").hidden = false;
  byId("key").focus();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value);
  byId("key").value = "";
  byId("key-form").hidden = true;
  byId("prompt").focus();
  lookNow();
});

// Where there is room, both are seen and these buttons are not.
for (const view of ["chat", "live"]) {
  byId(`show-${view}`).addEventListener("click", () => {
    document.body.dataset.view = view;
    for (const other of ["chat", "live"]) {
      byId(`show-${other}`).setAttribute("aria-pressed", String(other === view));
    }
  });
}

startChat(askForKey);
startLive(askForKey);
