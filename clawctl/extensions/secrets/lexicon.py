# ruff: noqa: E501 - lists of words stay lines
"""Words that occur around codes, grouped by their meaning for a nearby number. One line per language or group of related languages.

`stem*` matches the start of a word, `*stem*` a part of it, and `=word` is compared with its accents. All other entries match whole
words. Words in Latin and Greek letters are compared without accents. In scripts without spaces every entry matches a part of a run
of letters.
"""

import re
import unicodedata
from functools import lru_cache


class Meaning:
    """What a word means for a number near it. Meanings are bits of one integer, because many words are looked up."""

    NOTHING = 0
    STRONG = 1  # the number is a secret: PIN, PUK, CVV, TAN
    WEAK = 2  # the number is a secret if another word says what it opens: code, combination
    PASSWORD = 4
    LOCK = 8  # what a code opens: door, alarm, safe
    KEYBOX = 16
    OWNER = 32  # other things a code belongs to: card, phone, verification
    HARMLESS = 64  # a code with another meaning: postal, error, bar
    BEFORE = 128  # a number directly after it is its number: room, page, order
    AFTER = 256  # a number directly before it is a count or a measure: digits, minutes
    IS = 512  # joins a number to what it is
    OPENS = 1024  # an action performed with a code: opens, press, type
    DIGIT = 2048  # zero to nine as a word
    TWICE = 4096  # double, triple
    KEYS = 8192  # refers to access
    AND = 16384
    WHEN = 1 << 16  # a year or a time directly after it is just that
    YOURS = 1 << 17
    PLACE = 1 << 19  # words for what a code opens that are also common in other texts
    SECRECY = 1 << 18  # mentions sharing or secrecy
    PIN = 32768  # PIN alone: it has four digits or more, and other meanings


WORDS: dict[int, str] = {
    Meaning.STRONG: """
zahlenkombi*
画面ロック 锁屏密码 カードの裏 hostkey geheimzahlen
puk puk1 puk2 cvv cvc cvv2 cvc2 csc otp totp passcode* mpin tpin upin ipin mtan smstan pushtan itan phototan securecode
portkod* geheimzahl* geheimnummer* zahlenkombination* ziffernkombination* zahlencode* kartenprufnummer* kartenprufziffer* geheimcode* schlosskombination*
digicode* cryptogramme* geheimcijfer* cijfercombinatie* cijfercode* toegangscode* tunnusluku* turvaluku* avainluku* talvalyhdistelma*
kodkombination* sifferkombination* talkombination* kodeordkombination* hozzaferesi*
цвц цвв пинкод* пінкод* пук одноразов*
*ओटीपी* *एमपिन* *سی‌وی‌وی* cvv2
暗証番号 暗証 セキュリティコード 確認コード 認証コード 認証番号 解錠番号 開錠番号 解除番号 解錠コード 解除コード ワンタイム パスコード 暗唱番号 ロック番号
验证码 驗證碼 校验码 校驗碼 动态码 動態碼 认证码 認證碼 门禁码 門禁碼 开门码 開門碼 锁屏 鎖屏 安全码 安全碼 卡背 确认码 確認碼 门锁码 解锁码 解鎖碼 動態密碼 动态口令 识别码 提款密
핀번호* 인증번호* 인증코드* 보안코드* 잠금번호* 출입번호* 공동현관번호* 현관번호* 핀코드* 자물쇠번호* 열림번호* 일회용*
""",
    Meaning.PIN: """
pins pine pinu pinul pinkodu pinkod pini pinem piny pinim pinimi
pin pincode* pinkode* pinkod* pinnummer* pinnumber* pincod* onlinepin
пин пін пином піном пина піна пин-код* *पिन* *पिनकोड* *핀* ПИН פין *پین* πιν *بن‌كود*
พิน
""",
    Meaning.WEAK: """
ruckseite achterop achterkant verso retro обороте обратной звороті 裏 背面 뒷면* *पीछे* *خلف*
prufnummer* prufziffer* kontrollnummer* *کوڈ*
code codes combination combo combos passnumber
code codes kombination* nummernkombination*
codigo codigos combinacion combinacao codi clave-numerica
codice codici combinazione combinazioni combinaison* chiffre
combinatie* kod kodu kodem kody kodow kombinacja* kombinacje* kombinacji szyfr*
kodu kodum kodun kodunu kodumuz kodunuz kodlari kombinasyon* kombinasyonu
kod* kode* koden koder koodi* koodin kooda* yhdistelma* kodas koda kodi kods kood
kombinace* kombinaci kombinacia* cod codul codului combinatia* combinatie
=mã =mả =kode =sandi
код кода коду кодом коде коды комбинаци* комбінаці* шифр* лозинк* кодов* кодове
κωδικ* συνδυασμ* *קוד* *צירוף* *كود* *رمز* *کد* *شفرة* *कोड* *কোড* *কোড* *குறியீடு* *코드* *번호*
コード ナンバー 番号 密令 号码锁 组合
รหัส โค้ด
""",
    Meaning.PASSWORD: """
password passwort passworte kennwort kennworts codewort passwd pwd pw passphrase geheimwort phonepassword
contrasena clave claves senha senhas palavra-passe passe mdp parola parolă wachtwoord wachtwoordje haslo hasla haslem
sifre sifresi sifrem sifremiz sifreniz sifresini sifremi sifreyi sifresinin parolasi parolam parolayi
heslo hesla heslem jelszo jelszav* jelszó salasana* losenord* adgangskode* passord* kodeord* slaptazod* parole parool* lozinka lozinku
parola parolei parolele sandi kunci =khẩu =khau kata-sandi
парол* гасло гасла кодов*
*סיסמ* *ססמ* سر سرّ *السري* *السر* *سري* *المرور* *رمز‌عبور* *گذرواژ* *پسورد* *باسورد* *पासवर्ड* *পাসওয়ার্ড* κωδικο συνθηματικ*
パスワード 密码 密碼 口令 暗号 パスワ
비밀번호* 비번* 암호* 패스워드* 공동현관*
รหัสผ่าน
""",
    Meaning.KEYBOX: """
keybox* lockbox* keysafe* keylocker*
schlusselbox* schlusselkasten* schlusseltresor* schlusselsafe* schlusselkastchen* schluesselbox* schluesselkasten* schluesseltresor* schlusseldose*
sleutelkluis* sleutelkast* sleutelbox* sleuteldoos* nyckelskap* nyckelbox* nokleboks* nogleboks* nokkelboks* nokkelskap* avainboksi* avainkaappi* avainsailio*
cassettina cassetta portachiavi boite-a-cles kulcstarto* kulcsszef* ключниц* мини-сейф* минисейф*
キーボックス 钥匙盒 鑰匙盒 钥匙箱 密码盒 열쇠함* 키박스*
""",
    Meaning.LOCK: """
bin bins communal burglar 入口 エレベーター
halyty* fuerte
zahlenschloss* nummernschloss* *schloss cijferslot* ringslot* slot vrat vratum vratech branek fiets* safen safet skuret garasjen garasjedoren autotallin kellarin ytterdor* innerdor* ロック *دروازہ* *تالا* *قفل* entrada entradas
door doors gate gates alarm alarms safe safes vault lock locks padlock locker lockers garage garages keypad keypads intercom entrance entry building lobby shed cabinet
suitcase luggage bike deadbolt smartlock frontdoor backdoor garagedoor mailroom elevator lift barn storage gym porch closet basement homekit matter disarm stairwell courtyard parking cellar
airbnb vrbo cottage cabin keyless panel gun gunsafe strongbox cashbox turnstile apartment apt flat condo house home office annex annexe pool fence driveway bunker mailbox letterbox parcel
tur ture turen turschloss haustur* eingang* tor tore hoftor* gartentor* garagentor* einfahrt* alarm alarmanlage* safe tresor* schloss* fahrradschloss* vorhangeschloss* spind* schliessfach* keller* garage* ferienhaus* ferienwohnung* koffer* hof hoftur* hauseingang* zahlenschloss* wohnung* buro* lager* schranke* tiefgarage* paketbox* briefkasten* bedroh*
porte portes portail portillon immeuble alarme alarmes coffre coffres coffre-fort cadenas antivol garage entree hall casier casiers cave residence consigne batiment interphone gite valise barriere serrure boite cles
puerta puertas portal portales portero verja garaje alarma alarmas caja cajas candado taquilla taquillas casillero cerradura trastero edificio llaves entrada maleta valla parking bici cancela porton piso
porta portas portao portoes portaria alarme alarmes cofre cofres cadeado cacifo cacifos armario garagem predio entrada fechadura chaves mala condominio catraca edificio
porta porte portone portoni cancello cancelli cancelletto allarme allarmi antifurto cassaforte cassetta cassettina lucchetto armadietto garage ingresso citofono portoncino serratura valigia box cantina chiavi tastierino palazzo sbarra
deur deuren voordeur* achterdeur* poort poorten poortje hek alarm kluis* kluisje* slot sloten fietsslot* hangslot* kastje garage* schuur* ingang* berging* lockers portiek* schuurtje slagboom* koffer* huisje
drzwi drzwiach brama bramy bramie brame bramka bramki furtka furtki furtke klatka klatki klatke alarm alarmu alarmem sejf sejfu sejfie klodka klodki klodke szafka szafki szafke garaz garazu domofon domofonu domofonem wejsci* skrytk* skrzynk* zamek zamka zamku szlaban* walizk* piwnic*
kapi kapisi kapinin kapidaki kasa kasanin kasasi alarm alarmin alarmi alarminin asma kilit kilidi kilidinin dolap dolabi dolabinin garaj garajin giris bina binanin apartman apartmanin bahce site sitenin valiz anahtar daire dairenin evin ofis ofisin bisiklet bariyer depo
dorr dorren porten grind larm larmet kassaskap* =lås =låset laset skap skapet garage* entre entren cykellas* hanglas* hus trapphus* forrad* dor doren alarm alarmen las lasen skab skabet hoveddor* opgang* pengeskab* pengeskap* hengelas* hangelas* sykkellas* bod boden lasekasse* portkod* dorkode* hytta hytten sommarstuga* sommerhus*
ovi oven ovessa oveen portti portin halytys* halytin kassakaappi* kassakaapin lukko lukon lokero* autotalli* rappu rapun porras* mokki mokin pyoran pyoranlukko
dvere dveri dvermi branka branky brana brany vrata alarm alarmu trezor* sejf* zamek zamku skrinka skrinky garaz garaze vchod vchodu visaci dum domu dveri schranka schranky
kapu kapuhoz ajto ajtohoz ajtó riaszto* szef* szefhez lakat* szekreny* garazs* lepcsohaz* bejarat* kapukod* bicikli* kapuko* haz
usa usii usi poarta porti portii alarma alarmei seif seiful seifului lacat* interfon* dulap* garaj* scara scarii bloc blocului vestiar*
=cửa =cổng =két =tủ =khóa =khoá =tòa =ổ
pintu gerbang brankas alarm gembok loker garasi rumah kunci pagar
дверь двери дверей дверью подъезд* ворот* калитк* сигнализац* сейф* замок замка замке замком навесн* шкафчик* ячейк* гараж* домофон* шлагбаум* вход* чемодан* камер* дом* дач* квартир* кладовк*
двер* під'їзд* під’їзд* підїзд* під’їзд хвіртк* воріт* сигналізац* сейф* замок замка замку шафк* скриньк* гараж* домофон* вхід* валіз* брам* охорон*
πορτα* πορτας εισοδ* συναγερμ* χρηματοκιβωτ* λουκετ* γκαραζ* πολυκατοικ* ντουλαπ* αυλοπορτ* θυροτηλεφων*
*דלת* *שער* *אזעק* *כספת* *מנעול* *לוקר* *כניס* *חניון* *בניין* *אינטרקום*
*باب* *بوابة* *البوابة* *خزنة* *الخزنة* *خزينة* *إنذار* *الإنذار* *قفل* *خزانة* *كراج* *العمارة* *المدخل* *القفل* *شقة* *در* *گاوصندوق* *دزدگیر* *درب* *کمد* *پارکینگ* *ساختمان*
*दरवाज* *गेट* *तिजोरी* *अलार्म* *ताल* *लॉकर* *गैरेज* *लॉक* *সিন্দুক* *দরজা* *গেট*
ドア 玄関 門 金庫 警報 アラーム 鍵 ロッカー オートロック エントランス ガレージ 自転車 物置 倉庫 宅配ボックス 南京錠 ゲート マンション スーツケース
门 門 保险箱 保險箱 保险柜 保險櫃 夾萬 警报 警報 报警 锁 鎖 储物柜 儲物櫃 车库 車庫 大堂 小区 门禁 門禁 民宿 行李箱 公寓
현관* 문 대문* 정문* 공동현관* 금고* 경보* 자물쇠* 사물함* 도어락* 차고* 출입* 출입문* 캐리어* 보관함* 알람* 도어록* 창고*
ประตู ตู้เซฟ เซฟ สัญญาณกันขโมย ล็อกเกอร์ รั้ว โรงรถ กุญแจ ห้อง
""",
    Meaning.OWNER: """
card cards bank banking debit credit atm sim esim phone mobile cell tablet ipad iphone android screen unlock voicemail account accounts visa mastercard amex maestro login logon signin sms text verification verify
security access authentication authenticator authorization authorisation confirmation activation recovery backup moderator host transfer parental kids child restriction profile savings checking revolut paypal venmo wallet
one-time onetime twofactor 2fa mfa signal whatsapp telegram google apple amazon microsoft icloud back secret personal laptop watch windows bitlocker bluebeam chase wells monzo vpn citrix token telephone handset helpline hotline chairperson leader organizer facilitator disarming duress user master guest installer cleaner cleaning visitor delivery temporary
karte karten kreditkarte* girocard* ec-karte* eckarte* bankkarte* debitkarte* bank sparkasse* volksbank* konto kontos handy* telefon* smartphone* sim simkarte* bildschirm* sperrbildschirm* mailbox* anrufbeantworter* uberweisung* sicherheits* bestatigung* verifizierung* anmelde* anmeldung* entsperr* freigabe* zugang* zutritt* einmal* ausweis* personalausweis* rezept elster kindersicherung* moderator* depot* visa sms
carte cartes bancaire bancaires bleue banque cb compte telephone portable mobile ecran deverrouill* messagerie repondeur verification securite validation confirmation acces connexion secret confidentiel usage dos virement moderateur parental titres
tarjeta tarjetas banco bancaria banca cajero movil telefono celular pantalla desbloque* buzon verificacion seguridad confirmacion acceso activacion firma transferencia reverso secreto cuenta bizum moderador parental
cartao cartoes banco bancario multibanco caixa conta telemovel celular telefone ecra ecran tela desbloque* verificacao seguranca confirmacao acesso ativacao voicemail secreto assinatura pix mbway transferencia verso nubank
carta carte bancomat banca bancario conto telefono cellulare schermo sblocco sbloccare segreteria verifica sicurezza conferma accesso attivazione retro segreto dispositivo postepay spid poste postamat bonifico moderatore genitori
kaart pasje bankpas* betaalpas* creditcard* bankkaart* rekening telefoon* mobiel* gsm scherm ontgrendel* voicemail* verificatie* beveilig* bevestig* toegang* inlog* inloggen achterkant geheim eenmalig* spaarrekening* bank zakelijke digid kinderslot* 
karta karty karcie karte kartą bank banku bankowej bankomat* konto konta telefon* komork* ekran* odblokow* poczt* glosow* weryfikac* bezpieczenst* potwierdz* dostep* aktywac* blik przelew* tajn* autoryzac* sms jednoraz* logowan* mojeid
kart karti kartin kartimin kartinin kartim banka bankamatik kredi banka telefon* cep ekran* sim dogrulama* onay* guvenlik* giris* erisim* aktivasyon* hesap hesabi arkasi sesli sms havale tek edevlet
kort kortet bankkort* kreditkort* betalkort* bank* konto kontot mobil* telefon* skarm* skjerm* sikkerhed* sakerhet* verifi* bekraft* bekreft* bekraeft* inlogg* opplas* upplas* rostbrev* telefonsvar* atkomst* adgang* engangs* nemid mitid bankid
kortti kortin pankki* pankin pankki tili tilin puhelin* puhelim* naytto* vahvistus* turva* avaus* kirjaut* kertakaytto* varmistus* luottokort*
karta karty karte kartu banka banky bankovn* ucet* telefon* mobil* obrazovk* overov* bezpecnost* potvrz* potvrd* pristup* odemyk* odomyk* platebn* kreditn* hlasov* jednoraz*
kartya* kartyam* bank* bankkartya* szamla* telefon* mobil* kepernyo* ellenorzo* biztonsagi* megerosit* belepes* felold* hangposta* egyszer*
card cardul cardului banca bancar* cont contului telefon* mobil* ecran* verificare* securitate* confirmare* acces* deblocare* spate* tranzact*
=thẻ =ngân =điện =thoại =xác =bảo =khoản =mật
kartu bank rekening telepon ponsel layar verifikasi keamanan konfirmasi akses atm
карт* банк* банковск* сбер* тинькофф* альф* телефон* мобильн* экран* разблокир* симк* сим симкарт* голосов* проверочн* подтвержд* безопасн* доступ* вход* кредитк* обратн* оборот* смс перевод* секретн* госуслуг* тройк* счёт* счет*
картк* картц* банк* приват* монобанк* телефон* мобільн* екран* розблок* сімк* підтвердж* безпек* доступ* зворот* перев* смс рахунк* дія дії секретн*
καρτα* καρτας τραπεζ* κινητ* τηλεφων* οθον* επαληθευ* ασφαλει* προσβασ* λογαριασμ* sim
*כרטיס* *אשראי* *בנק* *טלפון* *נייד* *מסך* *אימות* *אבטחה* *גישה* *גב* *סודי* *חשבון* *תא‌קולי*
*بطاق* *البطاق* *بنك* *البنك* *مصرف* *الهاتف* *جوال* *الجوال* *شاشة* *الشريحة* *شريحة* *التحقق* *تحقق* *التأكيد* *الأمان* *أمان* *الدخول* *تفعيل* *خلف* *صراف* *حساب* *الراجحي* *أبشر* *فتح* *سري* *کارت* *بانک* *گوشی* *موبایل* *حساب* *تایید* *سیم*
*कार्ड* *बैंक* *एटीएम* *फोन* *फ़ोन* *मोबाइल* *स्क्रीन* *सत्यापन* *सुरक्षा* *यूपीआई* *सिम* *खात* upi *কার্ড* *ব্যাংক* *ফোন* *যাচাই*
カード 銀行 携帯 スマホ 電話 画面 留守電 認証 確認 キャッシュカード クレジット 裏 口座 スマートフォン マイナンバーカード 通帳 ゆうちょ
卡 银行 銀行 手机 手機 屏幕 螢幕 验证 驗證 安全 支付 转账 轉帳 语音信箱 語音信箱 账户 帳戶 微信 支付宝 背面 提款 社保卡
카드* 은행* 휴대폰* 핸드폰* 화면* 폰 유심* 인증* 보안* 계좌* 통장* 확인* 음성사서함* 뒷면* 체크카드* 신용카드*
บัตร ธนาคาร มือถือ โทรศัพท์ หน้าจอ ยืนยัน ซิม เอทีเอ็ม ความปลอดภัย
""",
    Meaning.PLACE: """
building lobby storage closet basement home house flat office box panel parcel matter apartment apt condo annex annexe pool fence parking port closed cellar mailroom elevator barn porch phone delivery hall cabin cottage lift site residence cave wohnung buro lager hof huis huisje hus haz dom domu evin daire ofis bina depo dum bloc casa koffer mala maison gym bike luggage entry entrance slot slott caja cajas cassetta stock tor tore
""",
    Meaning.KEYS: """
keys key schlussel* cles cle clefs llave llaves claves chave chaves chiave chiavi sleutel sleutels klucz klucze kluczy anahtar* nyckel* nogle* nokkel* avain* avaim* klic* kulcs* cheie chei ключ* ключи* κλειδ* *מפתח* *مفتاح* *कुंजी* *चाबी* 鍵 钥匙 鑰匙 열쇠*
code codes zugang
""",
    Meaning.HARMLESS: """
regulation regulations denied freeze review
zip postal postcode area country dialing dialling error errors close closes closing closed exit exits exiting exited returns returned status http https response return reason qr bar barcode source dress promo promotional discount coupon voucher referral product item sku order booking flight train morse color colour tax sort swift bic iban
airport iata icao language currency hs unicode ascii character opcode gpio connector header pinout arduino building-regulations penal civil fiscal labor labour ethics genetic blood cheat cheats fault diagnostic obd trouble dtc keyboard area-code course module cipher hex model part batch lot serial invoice sample example geo zone tariff ean upc isbn article insee naf ape nace icd cpt
exception line lines commit loop review block snippet function length dataset smiley emoji lapel badge brooch enamel bowling rolling hairpin conduct redirect errno syntax crash stack curl cve
postleit* plz vorwahl* ortskenn* fehler* strich* quell* gutschein* rabatt* aktions* farb* lander* flughafen* artikel* bestell* buchungs* statuscode* produkt* bank-leit* blz versions* tarif* kfz morse* stgb bgb waren*
postal* erreur* sortie barres civil penal source remise promo reduction pays indicatif produit commande article couleur fiscal route travail naf vestimentaire parrainage
postal error errores salida barras fuente descuento promocional promocion pais area producto pedido color fiscal penal civil vestimenta reserva referencia articulo solapa
postal erro saida barras fonte desconto promocional pais produto pedido cor fiscal penal civil cep rastreio referencia
postale errore uscita barre sorgente sconto promozionale promo paese prodotto ordine colore fiscale penale civile avviamento cap tributo fornitore stradale ateco
postcode* foutcode* fout fouten streepjes* bron* korting* actie* land* netnummer* product* bestel* artikel* kleur* kenteken*
pocztow* bledu blad bledem kresk* zrodl* rabat* promoc* kraj* kierunkow* produkt* zamowien* kolor* podatk* cywiln* karn* wyjscia pkd
posta hata barkod* kaynak indirim promosyon kampanya ulke alan urun siparis renk vergi kargo cikis
postnummer* fel felkod* fejl* feil* streck* streg* strek* kall* kild* rabatt* rabat* lands* landkod* produkt* bestall* farg* farv* riktnummer*
posti* virhe* viiva* lahde* alennus* maa* tuote* tilaus* vari* suunta*
psc chyb* carov* zdroj* slev* zlav* zeme* produkt* objednav* barv* smerov* danov*
irany* hiba* hibak* vonal* forras* kedvezmeny* orszag* termek* rendeles* szin* korzet*
postal* eroare* bare sursa reducere tara produs comanda culoare fiscal
=bưu =lỗi =nguồn =giảm =vùng =quốc pos kesalahan batang sumber diskon negara produk pesanan area
почтов* ошибк* штрих* исходн* промо* скидк* стран* телефонн* товар* заказ* налогов* уголовн* граждан* цвет* регион* возврат* выхода оквэд поштов* помилк* знижк* країн* товар* замовлен* кримінальн* цивільн* вихідн*
ταχυδρομικ* σφαλμα* γραμμωτ* πηγαι* εκπτωτικ* χωρας προιοντ* παραγγελι*
*מיקוד* *שגיאה* *ברקוד* *מקור* *קופון* *הנחה* *אזור* *מדינה* *הזמנה* *מוצר*
*بريدي* *البريدي* *خطأ* *الخطأ* *خصم* *الخصم* *الدولة* *المنطقة* *الطلب* *المنتج* *شريطي* *المصدر* *پستی* *خطا* *تخفیف* *ملی* *رهگیری*
*पोस्ट* *त्रुटि* *डिस्काउंट* *कूपन* *देश* *उत्पाद* *ऑर्डर* *एरिया* *डाक*
郵便 エラー バー QRコード ソース クーポン 割引 国番号 市外局番 商品 注文 文字コード 終了 ステータス 会議番号 電話番号 便名
邮编 郵遞區號 邮政 错误 錯誤 二维码 二維碼 条形码 條碼 源代码 优惠 優惠 折扣 区号 區號 国家 商品 订单 訂單 代码 代碼 状态 身份证
우편* 오류* 에러* 바코드* 소스* 할인* 쿠폰* 국가* 지역* 상품* 주문* 전화번호* 상태* 운송장* 계좌번호* 사업자*
ไปรษณีย์ ข้อผิดพลาด บาร์โค้ด ส่วนลด ประเทศ สินค้า คำสั่งซื้อ
""",
 Meaning.BEFORE: """
room page line port version ticket order flight bus tram train chapter verse article paragraph section step level row column item invoice id conference conf meeting ending ends end year fy spring summer of-year call phone tel telephone fax extension ext dial-in room# rooms street st suite unit box po case file bug issue pr isbn length size limit max min minimum maximum count timeout iterations rounds age total than copyright rfc iso windows model last attempts within every costs cost price paid worth zip serial gate-number terminal seat number-plate error status exit
zimmer seite zeile port version ticket bestellung flug bus linie zug kapitel artikel absatz abschnitt schritt rechnung endet endend endenden endziffern jahr jahre telefon tel telefonnummer rufnummer fax durchwahl hausnummer postfach kundennummer kundennr auftrag vorgang plz preis kostet mehr mindestens maximal anrufen 
chambre page ligne version commande vol bus train chapitre verset article paragraphe section etape facture tel telephone numero-de annee appelez terminant prix environ dossier
habitacion pagina linea pedido vuelo autobus tren capitulo articulo paso factura tel telefono ano terminada termina acabada llama precio unos calle
quarto pagina linha pedido voo onibus autocarro comboio capitulo artigo passo fatura tel telefone ano final termina preco cerca rua
camera stanza pagina riga ordine volo autobus treno capitolo articolo passo fattura tel telefono finisce prezzo via
kamer pagina regel bestelling vlucht bus lijn trein hoofdstuk artikel stap factuur tel telefoon telefoonnummer jaar eindigend eindigt prijs ongeveer
pokoj pokoju strona strony linia zamowienie lot autobus pociag rozdzial artykul krok faktura tel telefon rok w konczac* cena okolo ulica
oda odasi sayfa satir siparis ucus otobus tren bolum madde adim fatura tel telefon yil yili sonu biten fiyat yaklasik
rum rom sida side rad linje ordre order flyg tag tog kapitel artikel steg faktura tlf tel ar
huone sivu rivi tilaus lento bussi juna luku artikla vuonna puh
pokoj strana radek objednavka let autobus vlak kapitola rok roce tel szoba oldal sor rendeles jarat busz vonat fejezet ev
комнат* страниц* строк* заказ* рейс* автобус* поезд* глав* стать* шаг* счет-фактур* год* тел телефон* цен* номер* улиц* кімнат* сторінк* рядок замовлен* потяг* році рік
*غرفة* *صفحة* *الطلب* *رحلة* *هاتف* *عام* *سنة* *कमरा* *पेज* *ऑर्डर* *साल* *फोन‌नंबर*
号室 ページ 注文 便 年 電話 電話番号 房间 页 订单 航班 电话 電話 호실 페이지 주문 전화*
""",
    Meaning.AFTER: """
combinations combinaisons combinaciones kombinationen kombinacji комбинаций possibilities permutations options
digit digits character characters chars char attempts attempt tries minute minutes min mins second seconds sec secs hour hours h hrs times time day days week weeks month months year years km m mi miles kg g mg lb lbs oz px ms mb gb kb kib mib tb bytes byte bit bits eur euro euros usd dollars dollar gbp pounds chf pln zl kr sek nok dkk tl try rub people users points steps lines tokens token items pages words percent am pm mah watt watts w kw kwh hz khz mhz ghz rpm bpm dpi cm mm ft feet inch inches sqft sqm ml l kcal cal volts v street st road rd avenue ave version requests votes copies seats rooms iterations rounds
stellig* zeichen ziffern stellen versuche* minuten stunden std sek sekunden uhr tage tagen wochen monate monaten jahre jahren mal prozent seiten personen punkte stuck meter schritte werktagen werktage cent
chiffres caracteres essais tentatives heures jours semaines mois ans fois pages personnes pas metres
digitos caracteres intentos minutos horas dias semanas meses anos veces paginas personas pasos metros pesos
tentativas vezes pessoas reais passos algarismos
cifre caratteri tentativi minuti ore giorni settimane mesi anni volte pagine persone passi metri
cijfers tekens pogingen uur uren dagen weken maanden jaar keer personen stappen cijferig*
cyfr cyfrow* cyfry znak* prob minut godzin* dni tygodni miesiecy lat razy stron osob krokow zlotych
haneli hane karakter deneme dakika saat gun hafta ay yil kez sayfa kisi lira adim tane
siffror siffer tecken tegn forsok forsog minuter minutter timmar timer dagar dage ar kronor kroner ganger
numeroa numeroinen merkkia yritysta minuuttia tuntia paivaa vuotta
cislic znaku pokusu minut hodin dni let krat korun jegyu szamjegyu karakter proba perc ora nap ev forint cifre incercari ore zile ani lei
digit karakter menit jam hari tahun kali rupiah =phút =giờ =ngày =năm =đồng =chữ
значн* цифр* символ* попыт* минут* час* дн* дней недел* месяц* лет год* раз рубл* руб страниц* человек шаг* тысяч* спроб* хвилин* годин* днів місяц* років гривень грн
ψηφι* χαρακτηρ* προσπαθει* λεπτα ωρες ημερες ετη ευρω
*ספרות* *תווים* *ניסיונות* *דקות* *שעות* *ימים* *שקל* *أرقام* *محاولات* *دقيقة* *دقائق* *ساعة* *أيام* *ريال* *درهم* *جنيه* *رقمی* *دقیقه* *تومان* *अंक* *बार* *मिनट* *घंटे* *दिन* *रुपये* *रुपए* *साल*
桁 文字 回 分 秒 時 日 月 年 円 個 人 番線 ページ 件 号車 メートル
位 个 個 次 分 秒 点 点钟 日 月 年 元 块 人 页 号线 米 字 点前
자리* 글자* 회 분 초 시 일 월 년 원 개 명 번째* 페이지* 호선* 시간*
หลัก ตัว นาที ชั่วโมง วัน บาท ปี ครั้ง
""",
    Meaning.WHEN: """
in since until before after around at by from to on of for about
in im am auf seit bis um ab anno gegen zwischen
en depuis jusqu avant apres vers des a
en desde hasta ano a sobre em ate =às as desde
dal fino nel alle verso dalle
in sinds tot om rond op van
od do w o okolo na z
i fra til kl sedan klo vuonna od do v roce
в с до около к на у о від до у
""",
    Meaning.YOURS: """
your my our its
mein meine meiner meinem dein deine deiner deinem ihr ihre ihrer ihrem unser unsere euer
mon ma mes ton ta votre vos notre nos son
mi mis tu tus su sus nuestro
meu minha teu tua seu sua nosso
mio mia tuo tua suo sua vostro
mijn jouw je uw ons onze
moj moja mojego mojej twoj twoja
min mitt mina din ditt dina vores var vart
мой моего моей твой твоего ваш вашего мій твій ваш
il-tuo minun sinun muj moje tvuj vas azonosito
您的 你的 我的 私の あなたの
내 당신의 제 *आपका* *मेरा* *मेरे*
""",
    Meaning.SECRECY: """
share anyone nobody shared disclose tell expires valid verify
teilen weiter weitergeben niemand gultig
partagez partager communiquez communiquer personne valable
compartas compartir comparta nadie caduca valido
compartilhe compartilhar ninguem expira
condividere condividerlo nessuno scade
deel delen niemand geldig
udostepniaj podawaj nikomu wazny
paylasmayin paylasma kimseyle gecerli
сообщайте никому говорите действителен повідомляйте нікому
del ikke dela
共有 告诉 泄露 泄漏 透露 告知 공유* *تشارك* *साझा*
""",
    Meaning.IS: """
is as it's its = was are becomes reads equals now remains being that's will be called use using with to
ist lautet war als sei heisst mit jetzt nun
est c'est sera était etait comme avec
es era sera como con ahora
e' é è e era como com agora come con adesso
is was als luidt met nu
to jest jako brzmi byl z
olarak dir =şu su olan oldu
ar er var som on oli je jako bol bude este =là ialah adalah
это этот стал как теперь такой це як є
ειναι ως הוא היא זה هو هي هذا كـ است है हैं था
は が を です だ で に
是 为 為 就是 改成 改为 改為 叫 用 设为 設為 设成 当 做
은 는 이 가 로 으로
คือ เป็น
""",
    Meaning.OPENS: """
entsperren entsperrt sblocca desbloquear
takes take wants accepts expects works staat stoi
open opens opened opening unlock unlocks unlocked disarm disarms disarmed disable disables deactivate deactivates arm turn turns press presses type types typed enter dial dials tap taps punch punches key-in keyed set reset put changed
offnet offnen geht auf aufgeht aufmachen tippe tippen tippst druck drucke drucken druckst gib eingeben eingibst gebe entscharf* unscharf ausschalten ausgeschaltet aus deaktivier* entsperr* eingestellt
ouvre ouvrir ouvrez s'ouvre tape tapes taper tapez compose composer composez composes mis mettre desactive* desarme* entrer entrez deverrouill* saisir saisis saisissez appuie
abre abren abrir abres se-abre marca marcas marcar teclea teclear pulsa pulsas pulsar pon poner puse desactiva* desarma* introduce mete metes quita
digita digite digitar digitas marque carrega carregue desliga desarma desativa* coloca abre pus poe
apre aprire apri apro si-apre digita digitare digiti premi premere stacca staccare staccato disattiva* disinseri* inserisci metti messo componi sblocca
opent openen opengaat toets toetsen toetst intoetsen druk drukken eraf uit uitzetten uitgezet tik tikken typ open gaat
otwiera otwierasz otworzyc otworz wpisz wpisac wpisujesz wcisnij wcisnac wylacz* rozbraja* rozbroj* wstukaj wbij nacisnij odblokow* ustawilem ustawilam
acilir aciliyor acmak acilan acarsin tusla tuslayin tuslay* bas basin basip gir girin kapat* kapan* yaz yazin
oppnas oppnar tryck slå slar trykk trykker tast taster abnes apnes abner avlarm* frakobl* stang knapp* avaa avautuu nappaile paina otevira otevres zadej zmackni vypn* nyisd nyilik deschide apasa tasteaza opresti nhap buka tekan masukkan
открыва* откры* набер* набира* нажм* нажима* введ* вводи* снима* отключ* ввест* жми відкрива* відкри* набер* натисн* введ* знім* вимик* вимкн*
ανοιγ* πατα πατησ* πληκτρολογ*
*פותח* *נפתח* *לחץ* *תקיש* *הקש* *להקיש* *يفتح* *تفتح* *اضغط* *ادخل* *أدخل* *اكتب* *افتح* *باز* *بزن* *खुल* *दबा* *डाल* *खोल*
開く 開け 開き 押し 押す 入力 解除 打ち込
打开 打開 按 输入 輸入 解锁 解鎖 解除 撤防 密码锁 开门
열려* 열리* 누르* 눌러* 입력* 해제* 치면* 누르면*
เปิด กด ใส่ ปลด
""",
    Meaning.DIGIT: """
zero one two three four five six seven eight nine oh nought naught niner
null eins zwei zwo drei vier funf fuenf sechs sieben acht neun
zero un une deux trois quatre cinq six sept huit neuf
cero uno dos tres cuatro cinco seis siete ocho nueve
zero um dois duas tres quatro cinco seis meia sete oito nove
zero uno due tre quattro cinque sei sette otto nove
nul een twee drie vier vijf zes zeven acht negen
zero jeden dwa trzy cztery piec szesc siedem osiem dziewiec
sifir bir iki uc dort bes alti yedi sekiz dokuz
noll ett tva tre fyra fem sex sju atta nio en to fire seks syv sju otte ni atte
nolla yksi kaksi kolme nelja viisi kuusi seitseman kahdeksan yhdeksan
nula jedna jeden dva dve tri ctyri pet sest sedm osm devet styri sedem osem
nulla egy ketto ket harom negy ot hat het nyolc kilenc
zero unu doi trei patru cinci sase sapte opt noua
=không =một =hai =ba =bốn =năm =sáu =bảy =tám =chín nol satu dua tiga empat lima enam tujuh delapan sembilan kosong
ноль нуль один одна два три четыре пять шесть семь восемь девять чотири п'ять п’ять шість сім вісім дев'ять дев’ять
μηδεν ενα δυο τρια τεσσερα πεντε εξι επτα εφτα οκτω οχτω εννεα εννια
אפס אחת אחד שתיים שניים שלוש שלושה ארבע ארבעה חמש חמישה שש שישה שבע שבעה שמונה תשע תשעה
صفر واحد اثنان اثنين إثنان تنين ثلاثة تلاتة ثلاث أربعة اربعة أربع خمسة خمس ستة ست سبعة سبع ثمانية تمانية ثمان تسعة تسع یک دو سه چهار پنج شش هفت هشت نه
शून्य ज़ीरो जीरो एक दो तीन चार पांच पाँच छह छः छे सात आठ नौ শূন্য এক দুই তিন চার পাঁচ ছয় সাত আট নয়
공 영 일 이 삼 사 오 육 칠 팔 구 하나 둘 셋 넷 다섯 여섯 일곱 여덟 아홉
ศูนย์ หนึ่ง สอง สาม สี่ ห้า หก เจ็ด แปด เก้า
ゼロ いち に さん よん し ご ろく なな しち はち きゅう 零 〇 一 二 三 四 五 六 七 八 九 幺 两 洞 レイ
""",
    Meaning.TWICE: "double triple doppel zweimal dreimal doble triple duplo dobro doppio dubbel drie-keer podwojn* cift dubbelt dobbelt двойн* дважды",
    Meaning.AND: "and und et y e ed i ve en og och ja a si и та і й و और と 和 및 or oder ou o lub veya of або или then dann puis luego then dan potem sonra poi depois",
}  # fmt: skip

_SPACELESS = "\u3040-\u30ff\u3400-\u9fff\u0e01-\u0e4e〇"
# Letters of the other scripts and their vowel signs. Digits and punctuation are left out.
_LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0300-\u037d\u0386-\u0481\u048a-\u0556\u0561-\u0587\u0591-\u05bd\u05bf-\u05c2\u05d0-\u05f2"
    "\u0610-\u061a\u0620-\u065f\u066e-\u06d3\u06d5-\u06ef\u06fa-\u06ff\u0900-\u0963\u0971-\u09e5\u0a01-\u0a65\u0a70-\u0ae5\u0b01-\u0b65"
    "\u0b82-\u0be5\u0c00-\u0c65\u0c80-\u0ce5\u0d00-\u0d65\u10a0-\u11ff\u1e00-\u1fff\u200c\uac00-\ud7a3"
)
TOKEN = re.compile(rf"[{_LETTERS}]{{1,40}}(?:['’][{_LETTERS}]{{1,20}})?|[{_SPACELESS}]{{1,40}}")
_IS_SPACELESS = re.compile(f"[{_SPACELESS}]")


@lru_cache(maxsize=1 << 14)
def plain(word: str) -> str:
    """Return the word in lower case, with Latin and Greek letters stripped of accents."""
    word = word.lower().replace("’", "'")
    if word.isascii() or (max(word) >= "\u0400" and not "\u1e00" <= max(word) < "\u2000"):
        return word
    bare = "".join(letter for letter in unicodedata.normalize("NFKD", word) if not unicodedata.combining(letter))
    return bare.translate(_PLAIN)


_PLAIN = str.maketrans({"ı": "i", "ł": "l", "ø": "o", "ß": "ss", "æ": "ae", "đ": "d", "ð": "d", "œ": "oe", "ς": "σ"})


class _Lexicon:
    def __init__(self) -> None:
        self.exact: dict[str, int] = {}
        self.accented: dict[str, int] = {}
        self.stems: dict[str, int] = {}
        self.parts: dict[str, int] = {}
        self.within: dict[str, int] = {}  # for scripts without spaces
        for meaning_of, block in WORDS.items():
            for entry in dict.fromkeys(block.split()):
                table, word = self._table(entry)
                table[word] = table.get(word, Meaning.NOTHING) | meaning_of
        self.parts_by_first: dict[str, list[str]] = {}
        for word in self.parts:
            self.parts_by_first.setdefault(word[0], []).append(word)
        self.within_by_first: dict[str, list[str]] = {}
        for word in sorted(self.within, key=len, reverse=True):
            self.within_by_first.setdefault(word[0], []).append(word)

    def _table(self, entry: str) -> tuple[dict[str, int], str]:
        if entry.startswith("="):
            return self.accented, entry[1:]
        word = plain(entry.strip("*").replace("\u200c", ""))
        if _IS_SPACELESS.match(entry):
            return self.within, word
        if entry.startswith("*") and len(word) > 1:
            return self.parts, word
        return (self.stems, word) if entry.endswith("*") and len(entry) > 1 else (self.exact, word)


_LEXICON = _Lexicon()
# `Türcode`, `portkod`, `ovikoodi`: the word also names what the code opens.
_COMPOUND = re.compile(
    r"(?P<of>.{2,24}?)[s]?(?P<word>codes?|codice|koden?|kode(?:n|ns|s)?|kod(?:u|em|om|ot|ja|ot)?|koodin?|kood|kombination(?:en)?|combinatie|nummer|nummret|pin|zahl|passwort|kennwort|wachtwoord|losenord|passord)$"
)
_COMPOUND_ENDS = (
    "code", "codes", "codice", "kode", "koden", "kodens", "kodes", "kod", "kodu", "kodem", "kodom", "kodot", "kodja", "kodjat",
    "koodi", "koodin", "kood", "kombination", "kombinationen", "combinatie", "pin", "passwort", "kennwort", "wachtwoord",
    "losenord", "passord",
)  # fmt: skip
_OF_CODES = Meaning.LOCK | Meaning.OWNER | Meaning.KEYBOX


@lru_cache(maxsize=1 << 15)
def meaning_of(word: str) -> int:
    """Return the meanings of a word in a script with spaces."""
    bare = plain(word).replace("\u200c", "")
    meanings = _LEXICON.accented.get(word.lower(), Meaning.NOTHING) | _LEXICON.exact.get(bare, Meaning.NOTHING)
    if "'" in bare:
        meanings |= meaning_of(bare.partition("'")[2]) | (
            _LEXICON.exact.get(bare.partition("'")[0], Meaning.NOTHING) & ~Meaning.DIGIT
        )
    for length in range(2, len(bare) + 1):
        meanings |= _LEXICON.stems.get(bare[:length], Meaning.NOTHING)
    if not bare.isascii():
        for at, letter in enumerate(bare):
            for part in _LEXICON.parts_by_first.get(letter, ()):
                if bare.startswith(part, at) and (at == 0 or len(part) > 2):
                    meanings |= _LEXICON.parts[part]
    if (
        not meanings & (Meaning.STRONG | Meaning.WEAK | Meaning.PASSWORD)
        and bare.endswith(_COMPOUND_ENDS)
        and (compound := _COMPOUND.fullmatch(bare))
    ):
        of = meaning_of(compound["of"]) | meaning_of(bare[: compound.start("word")])
        if not of & (_OF_CODES | Meaning.HARMLESS):  # `Haustürcode`, `sykkellåskode`: try the last parts of a longer compound
            of |= next(
                (
                    meaning
                    for cut in range(1, len(compound["of"]) - 2)
                    if (meaning := _exact_meaning(compound["of"][cut:])) & _OF_CODES
                ),
                of,
            )
        if of & Meaning.HARMLESS:
            meanings |= Meaning.HARMLESS
        elif of & _OF_CODES and compound["word"] not in ("nummer", "nummret", "zahl"):
            meanings |= Meaning.STRONG
    return meanings


def _exact_meaning(word: str) -> int:
    return _LEXICON.exact.get(word, Meaning.NOTHING)


@lru_cache(maxsize=1 << 13)
def words_within(run: str) -> tuple[tuple[int, int, int], ...]:
    """Return start, end and meanings of the words in a run of letters without spaces. The longest match wins."""
    words: list[tuple[int, int, int]] = []
    at, low = 0, run.lower()
    while at < len(low):
        for word in _LEXICON.within_by_first.get(low[at], ()):
            if low.startswith(word, at):
                words.append((at, at + len(word), _LEXICON.within[word]))
                at += len(word)
                break
        else:
            at += 1
    return tuple(words)


NAMES = Meaning.STRONG | Meaning.PIN | Meaning.WEAK | Meaning.PASSWORD
ANCHORED = NAMES | Meaning.LOCK | Meaning.KEYBOX
