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
      this.frame.answer = (data) => this.onmessage?.({ data });
      this.loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve));
      document.body.append(this.frame);
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.onmessage?.({ data });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
