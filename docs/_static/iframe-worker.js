// A browser starts no worker from a file. In a page that was opened from a folder, the search runs in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class {
    constructor(url) {
      this.frame = document.body.appendChild(document.createElement("iframe"))
      this.frame.hidden = true
      this.inside = this.frame.contentWindow
      this.inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }))
      this.ready = new Promise((resolve) => {
        const script = this.inside.document.createElement("script")
        script.onload = resolve
        script.onerror = () => this.onerror?.(new ErrorEvent("error", { message: `cannot load ${url}` }))
        script.src = url
        this.inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
