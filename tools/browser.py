"""Start the browser that playwright.config.py describes, and see that it has WebGPU."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Browser, Playwright

from tools.common import ROOT, ToolError, load_module

ADAPTER = """async () => {
    if (!navigator.gpu) return null;
    const adapter = await navigator.gpu.requestAdapter();
    if (!adapter) return null;
    const {vendor, architecture, description} = adapter.info;
    return [vendor, architecture, description].filter(Boolean).join(' ') || 'unnamed';
}"""


config: Any = load_module(ROOT / "playwright.config.py")


async def launch(playwright: Playwright, webgpu: bool = True) -> Browser:
    """Start a browser; the caller closes it.

    Raises:
        ToolError: there is none, or it does not start.
    """
    path = config.chromium()
    try:
        return await playwright.chromium.launch(
            executable_path=str(path),
            headless=config.HEADLESS,
            args=config.flags(webgpu),
            # Playwright's own --headless, --disable-gpu and friends would take WebGPU away.
            ignore_default_args=["--headless", "--headless=old", "--disable-gpu"],
            timeout=config.LAUNCH_TIMEOUT_MS,
        )
    except Exception as error:
        raise ToolError(f"{path} did not start: {str(error)[:600]}") from error


async def adapter_name(browser: Browser, url: str) -> str:
    """Return the WebGPU adapter's name, asked on the page at `url` (a secure context is needed).

    Raises:
        ToolError: there is no adapter.
    """
    page = await browser.new_page()
    try:
        await page.goto(url)
        name = await page.evaluate(ADAPTER)
    finally:
        await page.close()
    if name is None:
        raise ToolError(
            f"Chromium {browser.version} gives no WebGPU adapter with the flags of playwright.config.py: "
            f"{' '.join(config.flags())}. Is its package older than version 120, or built without SwiftShader?"
        )
    return str(name)
