// The theme searches in a Worker, which browsers refuse to pages opened from a folder. There, an iframe does its work.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.document.open();
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise(resolve => frame.addEventListener("load", () => resolve(inside)));
      inside.document.write(`<script src="${url}"></script>`);
      inside.document.close();
    }
    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
