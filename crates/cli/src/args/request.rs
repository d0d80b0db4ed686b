//! Request options of `comity fetch`: headers, cookies, credentials, timeouts, proxy.

use std::path::PathBuf;

use clap::Args as Group;
use comity::request::RequestFlags;

/// Request options: headers, cookies, credentials, timeouts, proxy
#[derive(Clone, Default, Group)]
pub(crate) struct Request {
    /// Send this header, such as 'X-Key: ${KEY}'; ${NAME} is a variable, ${file:PATH} a file's content
    #[arg(long, short = 'H', value_name = "HEADER", help_heading = "Request Options")]
    header: Vec<String>,
    /// Send this cookie to the hosts you list, such as 'session=${SESSION}'
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Request Options")]
    cookie: Vec<String>,
    /// Send the cookies in this file (Netscape format, as browsers and curl write it)
    #[arg(long, value_name = "FILE", help_heading = "Request Options")]
    cookies: Option<PathBuf>,
    /// Save the cookies that sites set to this file, and send them back
    #[arg(long, value_name = "FILE", help_heading = "Request Options")]
    cookie_jar: Option<PathBuf>,
    /// Basic authentication with the user:password in this variable
    #[arg(long, value_name = "NAME", help_heading = "Request Options", group = "auth")]
    auth_basic_env: Option<String>,
    /// Basic authentication with the user:password in this file
    #[arg(long, value_name = "FILE", help_heading = "Request Options", group = "auth")]
    auth_basic_file: Option<PathBuf>,
    /// Bearer authentication with the token in this variable
    #[arg(long, value_name = "NAME", help_heading = "Request Options", group = "auth")]
    auth_bearer_env: Option<String>,
    /// Bearer authentication with the token in this file
    #[arg(long, value_name = "FILE", help_heading = "Request Options", group = "auth")]
    auth_bearer_file: Option<PathBuf>,
    /// User agent; its first word is matched against robots.txt [default: Comity/0.1]
    #[arg(long, short = 'A', value_name = "NAME", help_heading = "Request Options")]
    user_agent: Option<String>,
    /// Timeout per request, such as 20s [default: 30s until the response starts, 5m in total]
    #[arg(long, value_name = "DURATION", help_heading = "Request Options")]
    timeout: Option<String>,
    /// Proxy: http://, https://, socks5:// or socks5h://HOST:PORT, or none [default: from http_proxy, https_proxy and
    /// all_proxy]
    #[arg(long, value_name = "URL", help_heading = "Request Options")]
    proxy: Option<String>,
    /// Don't verify the TLS certificate of this host; may be repeated
    #[arg(long, value_name = "HOST", help_heading = "Request Options")]
    insecure: Vec<String>,
}

/// Prints no values: they may be secrets.
impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Request")
    }
}

impl Request {
    /// The options as the engine takes them.
    pub(crate) fn typed(&self) -> RequestFlags {
        RequestFlags {
            headers: self.header.clone(),
            cookies: self.cookie.clone(),
            cookies_file: self.cookies.clone(),
            cookie_jar: self.cookie_jar.clone(),
            basic_env: self.auth_basic_env.clone(),
            basic_file: self.auth_basic_file.clone(),
            bearer_env: self.auth_bearer_env.clone(),
            bearer_file: self.auth_bearer_file.clone(),
            user_agent: self.user_agent.clone(),
            timeout: self.timeout.clone(),
            proxy: self.proxy.clone(),
            insecure: self.insecure.clone(),
        }
    }
}
