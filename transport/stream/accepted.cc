#include "transport/stream/accepted.h"

#include <sys/socket.h>

namespace gradcast {

Accepted::~Accepted() {
    if (handshake && handshake->state() == Handshake::State::asked)
        refuse(Verdict::later, fmt::format("it has not opened job {}", job_id_text(handshake->peer().job)));
}

void Accepted::refuse(Verdict verdict, const std::string& reason) {
    handshake->refuse(verdict, reason);
    auto text = handshake->output();
    (void)!::send(fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::shutdown(fd.get(), SHUT_WR);
    fd.close();
}

}   // namespace gradcast
