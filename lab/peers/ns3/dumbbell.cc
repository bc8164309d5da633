// A dumbbell in ns-3, for `cargo lab anchor`: what apps/sim computes, by another simulator.
//
// Hosts `left k` send to hosts `right k` over two routers and a bottleneck. All is set to what
// Towpath has: segments of 1448 bytes, an initial window of 10, SACK and timestamps, delayed ACKs of
// 40 ms, a smallest RTO of 200 ms, recovery by RFC 6675, CUBIC without HyStart. Prints JSON.
//
// Needs Debian's libns3-dev; xtask/src/anchor.rs has the compiler's options.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <ns3/applications-module.h>
#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>
#include <ns3/traffic-control-module.h>

using namespace ns3;

namespace
{

constexpr uint32_t SEGMENT = 1448;
constexpr uint16_t PORT = 5000;

// Routes of a router whose hosts are numbered: one lookup in an array. ns-3's static routing
// compares with each route in turn, which a thousand hosts would pay for with each packet.
class NumberedRouting : public Ipv4RoutingProtocol
{
  public:
    // Hosts of this side are 10.SIDE.high.low, with the interface 2 + number; the others are
    // behind the bottleneck, which is interface 1.
    void SetSide(uint32_t side)
    {
        m_side = side;
    }

    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>,
                               const Ipv4Header& header,
                               Ptr<NetDevice>,
                               Socket::SocketErrno& error) override
    {
        error = Socket::ERROR_NOTERROR;
        return RouteTo(header.GetDestination());
    }

    bool RouteInput(Ptr<const Packet> packet,
                    const Ipv4Header& header,
                    Ptr<const NetDevice>,
                    UnicastForwardCallback forward,
                    MulticastForwardCallback,
                    LocalDeliverCallback,
                    ErrorCallback) override
    {
        forward(RouteTo(header.GetDestination()), packet, header);
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override
    {
    }

    void NotifyInterfaceDown(uint32_t) override
    {
    }

    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override
    {
    }

    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override
    {
    }

    void SetIpv4(Ptr<Ipv4> ipv4) override
    {
        m_ipv4 = ipv4;
    }

    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override
    {
    }

  private:
    Ptr<Ipv4Route> RouteTo(Ipv4Address to)
    {
        uint32_t address = to.Get();
        bool isHere = ((address >> 16) & 0xff) == m_side;
        uint32_t interface = isHere ? 2 + ((address & 0xffff) >> 2) : 1;
        if (m_routes.size() <= interface)
        {
            m_routes.resize(interface + 1);
        }
        Ptr<Ipv4Route>& route = m_routes[interface];
        if (!route)
        {
            route = Create<Ipv4Route>();
            route->SetOutputDevice(m_ipv4->GetNetDevice(interface));
        }
        route->SetDestination(to);
        route->SetGateway(to);
        return route;
    }

    Ptr<Ipv4> m_ipv4;
    uint32_t m_side = 0;
    std::vector<Ptr<Ipv4Route>> m_routes;
};

class NumberedRoutingHelper : public Ipv4RoutingHelper
{
  public:
    explicit NumberedRoutingHelper(uint32_t side)
        : m_side(side)
    {
    }

    Ipv4RoutingHelper* Copy() const override
    {
        return new NumberedRoutingHelper(m_side);
    }

    Ptr<Ipv4RoutingProtocol> Create(Ptr<Node>) const override
    {
        Ptr<NumberedRouting> routing = CreateObject<NumberedRouting>();
        routing->SetSide(m_side);
        return routing;
    }

  private:
    uint32_t m_side;
};

std::vector<std::string> Words(const std::string& text)
{
    std::istringstream in(text);
    std::vector<std::string> words;
    for (std::string word; std::getline(in, word, ',');)
    {
        words.push_back(word);
    }
    return words;
}

// Waits in the discipline of the bottleneck. The device below it holds one packet more, whose time
// there is that of the packet before.
struct Waits
{
    std::vector<int64_t> ns;
    // Time from which on packets count.
    Time from;

    void Left(Time wait)
    {
        if (Simulator::Now() >= from)
        {
            ns.push_back(wait.GetNanoSeconds());
        }
    }

    double Mean() const
    {
        double sum = 0;
        for (int64_t one : ns)
        {
            sum += static_cast<double>(one);
        }
        return ns.empty() ? 0 : sum / static_cast<double>(ns.size()) / 1e9;
    }

    double Quantile(double share)
    {
        if (ns.empty())
        {
            return 0;
        }
        size_t at = std::min(ns.size() - 1, static_cast<size_t>(share * ns.size()));
        std::nth_element(ns.begin(), ns.begin() + at, ns.end());
        return static_cast<double>(ns[at]) / 1e9;
    }
};

uint64_t g_carried = 0;

void
Carried(Ptr<const Packet>)
{
    g_carried++;
}

// The discipline of the bottleneck. The device below keeps one packet more.
void
SetQueue(TrafficControlHelper& control, const std::string& queue, uint32_t limit)
{
    QueueSizeValue size(QueueSize(QueueSizeUnit::PACKETS, limit));
    if (queue == "pfifo")
    {
        size = QueueSizeValue(QueueSize(QueueSizeUnit::PACKETS, limit - 1));
        control.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", size);
    }
    else if (queue == "codel")
    {
        control.SetRootQueueDisc("ns3::CoDelQueueDisc", "MaxSize", size);
    }
    else if (queue == "fq_codel")
    {
        control.SetRootQueueDisc("ns3::FqCoDelQueueDisc", "MaxSize", size);
    }
    else if (queue == "pie")
    {
        control.SetRootQueueDisc("ns3::PieQueueDisc", "MaxSize", size);
    }
    else
    {
        NS_FATAL_ERROR("no queue: " << queue);
    }
}

} // namespace

int
main(int argc, char** argv)
{
    uint64_t rate = 10'000'000;
    uint64_t edgeRate = 1'000'000'000;
    double delayMs = 20;
    std::string edgeDelaysMs = "1";
    std::string startsMs = "0";
    std::string queue = "pfifo";
    uint32_t limit = 100;
    std::string congestion = "reno";
    double durationS = 10;
    uint32_t lostFirst = 0;
    uint32_t lostCount = 0;
    double waitsFromS = 0;
    bool observe = true;

    CommandLine line;
    line.AddValue("rate", "bits per second of the bottleneck, without link headers", rate);
    line.AddValue("edgeRate", "bits per second of the other links", edgeRate);
    line.AddValue("delay", "ms of the bottleneck", delayMs);
    line.AddValue("edgeDelays", "ms of each link on the left, separated by commas", edgeDelaysMs);
    line.AddValue("starts", "ms at which each flow starts, separated by commas", startsMs);
    line.AddValue("queue", "pfifo, codel, fq_codel or pie", queue);
    line.AddValue("limit", "packets of the queue", limit);
    line.AddValue("congestion", "reno or cubic", congestion);
    line.AddValue("duration", "s", durationS);
    line.AddValue("lostFirst", "number of the first packet that the bottleneck loses", lostFirst);
    line.AddValue("lostCount", "packets that it loses", lostCount);
    line.AddValue("waitsFrom", "s from which on waits count", waitsFromS);
    line.AddValue("observe", "counts packets and times the queue", observe);
    line.Parse(argc, argv);
    std::vector<std::string> edgeDelays = Words(edgeDelaysMs);
    std::vector<std::string> starts = Words(startsMs);
    size_t flows = starts.size();

    Config::SetDefault("ns3::TcpL4Protocol::SocketType",
                       TypeIdValue(congestion == "cubic" ? TcpCubic::GetTypeId()
                                                         : TcpLinuxReno::GetTypeId()));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType",
                       TypeIdValue(TcpClassicRecovery::GetTypeId()));
    Config::SetDefault("ns3::TcpCubic::HyStart", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(SEGMENT));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(4 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(4 << 20));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(40)));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));

    NodeContainer left;
    NodeContainer right;
    NodeContainer routers;
    left.Create(flows);
    right.Create(flows);
    routers.Create(2);
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    Ipv4StaticRoutingHelper hostRouting;
    stack.SetRoutingHelper(hostRouting);
    stack.Install(left);
    stack.Install(right);
    for (uint32_t side = 0; side < 2; side++)
    {
        NumberedRoutingHelper routing(1 + side);
        stack.SetRoutingHelper(routing);
        stack.Install(routers.Get(side));
    }

    PointToPointHelper middle;
    middle.SetDeviceAttribute("DataRate", DataRateValue(DataRate(rate)));
    middle.SetChannelAttribute("Delay", TimeValue(MicroSeconds(delayMs * 1000)));
    middle.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
    NetDeviceContainer bottleneck = middle.Install(routers);
    TrafficControlHelper control;
    SetQueue(control, queue, limit);
    QueueDiscContainer disciplines = control.Install(bottleneck);
    Ipv4AddressHelper addresses;
    addresses.SetBase("10.3.0.0", "255.255.255.252");
    addresses.Assign(bottleneck);

    // Disciplines at the edges never drop: the senders' windows fit in.
    TrafficControlHelper edgeControl;
    edgeControl.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue("100000p"));
    for (uint32_t side = 0; side < 2; side++)
    {
        addresses.SetBase(side == 0 ? "10.1.0.0" : "10.2.0.0", "255.255.255.252");
        for (size_t number = 0; number < flows; number++)
        {
            double ms = side == 0 ? std::stod(edgeDelays[number % edgeDelays.size()]) : 1;
            PointToPointHelper edge;
            edge.SetDeviceAttribute("DataRate", DataRateValue(DataRate(edgeRate)));
            edge.SetChannelAttribute("Delay", TimeValue(MicroSeconds(ms * 1000)));
            Ptr<Node> host = (side == 0 ? left : right).Get(number);
            NetDeviceContainer link = edge.Install(routers.Get(side), host);
            edgeControl.Install(link);
            Ipv4InterfaceContainer assigned = addresses.Assign(link);
            addresses.NewNetwork();
            hostRouting.GetStaticRouting(host->GetObject<Ipv4>())
                ->SetDefaultRoute(assigned.GetAddress(0), 1);
        }
    }

    std::vector<Ptr<PacketSink>> sinks;
    for (size_t number = 0; number < flows; number++)
    {
        Ipv4Address to = right.Get(number)->GetObject<Ipv4>()->GetAddress(1, 0).GetLocal();
        PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(to, PORT));
        ApplicationContainer sinkApp = sink.Install(right.Get(number));
        sinks.push_back(DynamicCast<PacketSink>(sinkApp.Get(0)));
        BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(to, PORT));
        bulk.SetAttribute("SendSize", UintegerValue(SEGMENT));
        ApplicationContainer source = bulk.Install(left.Get(number));
        source.Start(MicroSeconds(std::stod(starts[number]) * 1000));
    }

    if (lostCount > 0)
    {
        std::list<uint32_t> numbers;
        for (uint32_t number = 0; number < lostCount; number++)
        {
            numbers.push_back(lostFirst + number);
        }
        Ptr<ReceiveListErrorModel> losses = CreateObject<ReceiveListErrorModel>();
        losses->SetList(numbers);
        bottleneck.Get(1)->SetAttribute("ReceiveErrorModel", PointerValue(losses));
    }
    Waits waits;
    waits.from = Seconds(waitsFromS);
    if (observe)
    {
        Ptr<QueueDisc> discipline = disciplines.Get(0);
        discipline->TraceConnectWithoutContext("SojournTime", MakeCallback(&Waits::Left, &waits));
        Config::ConnectWithoutContext("/NodeList/*/DeviceList/*/$ns3::PointToPointNetDevice/PhyRxEnd",
                                      MakeCallback(&Carried));
    }

    Simulator::Stop(Seconds(durationS));
    auto begin = std::chrono::steady_clock::now();
    Simulator::Run();
    std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;

    std::cout << "{\"wall_s\": " << wall.count() << ", \"events\": " << Simulator::GetEventCount()
              << ", \"packets\": " << g_carried
              << ", \"dropped\": " << disciplines.Get(0)->GetStats().nTotalDroppedPackets
              << ", \"wait_mean_s\": " << waits.Mean() << ", \"wait_p95_s\": " << waits.Quantile(0.95)
              << ", \"bytes\": [";
    for (size_t number = 0; number < flows; number++)
    {
        std::cout << (number == 0 ? "" : ", ") << sinks[number]->GetTotalRx();
    }
    std::cout << "]}" << std::endl;
    Simulator::Destroy();
    return 0;
}
