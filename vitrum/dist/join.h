// Connects the processes of a run that a launcher has started, over TCP.
#pragma once
#include "vitrum/dist/group.h"
#include "vitrum/dist/world.h"

namespace vitrum {

// Listens on the loopback interface where all are on one machine, else on the one that MASTER_ADDR
// is of, and on none once all are connected. Each connection begins with both sides proving that
// they know the secret.
Connections join_world(const World& world);

}  // namespace vitrum
