"""`tilewright mcp`: the commands of Tilewright as tools for coding agents, by the Model Context Protocol (MCP)."""
