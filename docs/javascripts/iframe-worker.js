// A browser starts no worker for a page that was opened as a file. The search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc =
        "<script>self.postMessage = (data) => self.frameElement.answer(data);</script>" +
        `<script src="${new URL(address, location.href)}"></script>`;
      // As between a page and a worker: both sides have their own copy, and nobody waits.
      this.frame.answer = (data) => {
        const copy = structuredClone(data);
        setTimeout(() => this.onmessage?.({ data: copy }));
      };
      this.loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve));
      document.body.append(this.frame);
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.loaded.then(() => this.frame.contentWindow.onmessage?.({ data: copy }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
