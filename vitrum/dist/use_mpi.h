// MPI as the way of bulk data, where mpirun has started the processes: it knows the cluster's
// network.
#pragma once
#include "vitrum/dist/group.h"

namespace vitrum {

// Does nothing where MPI has not started this process, its library is not installed everywhere, or
// VITRUM_MPI=0 says so; with VITRUM_MPI=1 that is an error. Every process of the run calls it.
void use_mpi(Group& group);

}  // namespace vitrum
