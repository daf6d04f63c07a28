// An HTTP client of the control plane over TCP: httplib's, with TLS and a key between it and its socket.
#pragma once
#include <httplib.h>

#include "runtime/control/tls.h"

namespace gradcast {

/// Use as httplib::Client.  One thread; every call has a deadline.
class TlsHttp final : public httplib::ClientImpl {
public:
    TlsHttp(const std::string& host, uint16_t port, const ControlKey& key);
    /// Why the last request found no daemon that takes the key; "": it did.
    const std::string& why() const { return why_; }

private:
    bool create_and_connect_socket(Socket& socket, httplib::Error& error) override;
    bool process_socket(const Socket& socket, std::function<bool(httplib::Stream&)> callback) override;
    bool connect(Socket& socket, httplib::Error& error);
    bool shake_hands(int fd);

    const std::shared_ptr<const TlsKeys> keys_;
    std::unique_ptr<TlsEnd> tls_;
    std::string why_;
};

}   // namespace gradcast
